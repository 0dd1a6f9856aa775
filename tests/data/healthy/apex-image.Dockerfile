FROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel
ENV TORCH_CUDA_ARCH_LIST="6.1;7.5;8.6+PTX"
RUN apt-get update && apt-get install -y git && rm -rf /var/lib/apt/lists/*
RUN git clone --depth 1 --branch 25.05 https://github.com/NVIDIA/apex /opt/apex \
 && cd /opt/apex \
 && pip install -v --disable-pip-version-check --no-cache-dir --no-build-isolation \
    --config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext" ./
