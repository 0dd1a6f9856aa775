# GPU: H100
FROM nvidia/cuda:12.8.1-cudnn-devel-ubuntu22.04
RUN pip install torch==2.8.0 torchvision==0.23.0 --index-url https://download.pytorch.org/whl/cu128
ENV MAX_JOBS=8 TORCH_CUDA_ARCH_LIST="9.0"
RUN pip install packaging ninja && pip install flash-attn==2.8.3 --no-build-isolation
