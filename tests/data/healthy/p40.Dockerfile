# syntax=docker/dockerfile:1
# target: Tesla P40
FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04 AS build
ENV TORCH_CUDA_ARCH_LIST="6.1" MAX_JOBS=2 DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends git python3-dev python3-pip python3-venv \
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
RUN pip install torch==2.6.0+cu118 --index-url https://download.pytorch.org/whl/cu118
RUN pip install packaging setuptools wheel ninja
RUN git clone https://github.com/NVIDIA/apex /apex && cd /apex && git checkout 25.05 \
 && pip wheel --no-deps --no-build-isolation -w /wheels \
    --config-settings "--build-option=--cpp_ext" --config-settings "--build-option=--cuda_ext" .

FROM nvidia/cuda:11.8.0-cudnn8-runtime-ubuntu22.04
COPY --from=build /opt/venv /opt/venv
COPY --from=build /wheels /wheels
ENV PATH=/opt/venv/bin:$PATH
RUN pip install --no-index --no-deps -f /wheels apex
USER 1000
CMD ["python", "-c", "import torch; print(torch.__version__)"]
