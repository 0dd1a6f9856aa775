ARG CUDA_VERSION=11.8.0
FROM nvidia/cuda:${CUDA_VERSION}-cudnn8-devel-ubuntu22.04
ARG TORCH_VERSION=2.6.0
ARG CUDA_TAG=cu118
RUN apt-get update && apt-get install -y --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/*
RUN pip3 install "torch==${TORCH_VERSION}+${CUDA_TAG}" --index-url "https://download.pytorch.org/whl/${CUDA_TAG}"
