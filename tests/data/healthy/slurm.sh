#!/bin/bash
#SBATCH --gres=gpu:1
source ~/miniconda3/etc/profile.d/conda.sh
conda activate rl
export TORCH_CUDA_ARCH_LIST="6.1"
for seed in 1 2 3; do
  python train.py --seed "$seed" --lr 1e-4 > "logs/$seed.txt" 2>&1
done
pip install -q 'numpy>=1.26' "pandas<3"
[[ $x > 3 ]] && echo yes
cat <<EOF > config.yaml
torch>=2.0
EOF
