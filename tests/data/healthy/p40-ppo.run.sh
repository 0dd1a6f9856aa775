#!/usr/bin/env bash
# verl 0.5.0, Tesla P40
set -euo pipefail
python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=gae \
  algorithm.use_kl_in_reward=True \
  algorithm.kl_ctrl.kl_coef=0.001 \
  data.train_files="$DATA/train.parquet" \
  data.val_files="$DATA/test.parquet" \
  data.train_batch_size=8 \
  data.max_prompt_length=256 \
  data.max_response_length=256 \
  actor_rollout_ref.model.path="$MODEL" \
  actor_rollout_ref.model.use_remove_padding=False \
  actor_rollout_ref.model.enable_gradient_checkpointing=True \
  actor_rollout_ref.actor.use_torch_compile=False \
  actor_rollout_ref.actor.ppo_mini_batch_size=8 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
  +actor_rollout_ref.actor.fsdp_config.model_dtype=fp32 \
  +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32 \
  +actor_rollout_ref.ref.fsdp_config.model_dtype=fp32 \
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1 \
  actor_rollout_ref.rollout.name=hf \
  actor_rollout_ref.rollout.dtype=float32 \
  actor_rollout_ref.rollout.n=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \
  critic.model.path="$MODEL" \
  +critic.model.fsdp_config.model_dtype=fp32 \
  critic.ppo_micro_batch_size_per_gpu=1 \
  trainer.n_gpus_per_node=1 trainer.nnodes=1 trainer.total_epochs=1 \
  trainer.logger="['console']" trainer.save_freq=-1 "$@"
