FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update && \
    apt-get install -qq -y --no-install-recommends git curl python3.10 python3-pip && \
    ln -sf python3.10 /usr/bin/python && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --upgrade pip setuptools wheel
RUN pip install --no-cache-dir torch==2.6.0+cu118 torchvision==0.21.0+cu118 torchaudio==2.6.0+cu118 \
        --extra-index-url https://download.pytorch.org/whl/cu118
RUN pip install --no-cache-dir transformers==4.56.1 datasets==4.0.0 \
    && rm -rf /root/.cache
ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64:$LD_LIBRARY_PATH CUDA_HOME=/usr/local/cuda
WORKDIR /workspace
