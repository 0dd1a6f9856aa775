#!/bin/bash
# verl 0.5.0 on A100
OVERRIDES=(
  algorithm.adv_estimator=grpo
  data.train_files=data/train.parquet
  data.train_batch_size=1024
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct
  actor_rollout_ref.model.use_remove_padding=True
  actor_rollout_ref.rollout.name=vllm
  actor_rollout_ref.rollout.n=5
  actor_rollout_ref.rollout.gpu_memory_utilization=0.6
  trainer.n_gpus_per_node=8
)
python3 -m verl.trainer.main_ppo "${OVERRIDES[@]}"
