#!/usr/bin/env bash
set -x
MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-0.5B-Instruct}
python3 -m verl.trainer.main_ppo \
    --config-path=/cfg --config-name=ppo \
    actor_rollout_ref.actor.use_torch_compile=False actor_rollout_ref.rollout.name=hf \
    actor_rollout_ref.model.path="$MODEL_PATH" data.train_files="['a.parquet','b.parquet']" \
    data.train_batch_size=${BS:-64} trainer.n_gpus_per_node=1 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
    custom_reward_function.path=reward.py custom_reward_function.name=score 2>&1 | tee verl.log
