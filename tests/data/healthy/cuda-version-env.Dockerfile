ARG CUDA_VERSION=11.8.0
FROM nvidia/cuda:$CUDA_VERSION-devel-ubuntu22.04
RUN apt-get update && apt-get install -y python3-pip
RUN CU=$(echo "${CUDA_VERSION%.*}" | tr -d .); pip3 install torch==2.6.0 --index-url "https://download.pytorch.org/whl/cu$CU"
