#!/usr/bin/env bash
set -euo pipefail
python3 -m venv .venv
. .venv/bin/activate
pip install --upgrade pip
pip install torch==2.6.0+cu118 torchvision==0.21.0+cu118 --index-url https://download.pytorch.org/whl/cu118
pip install -c constraints.txt transformers==4.56.1 "numpy>=1.26,<2"
if [ "${DEV:-0}" = 1 ]; then
  pip install pytest > /dev/null
fi
export CUDA_HOME=/usr/local/cuda-11.8
