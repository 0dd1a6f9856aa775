#!/bin/bash
#SBATCH --gres=gpu:1
#SBATCH --mem=64G
module load cuda/11.8
source .venv/bin/activate
srun python train.py --fp16 false
