# GPU: H100
FROM nvidia/cuda:12.4.1-cudnn-devel-ubuntu22.04
RUN apt-get update && apt-get install -y --no-install-recommends python3-venv git && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH MAX_JOBS=4
RUN pip install --no-cache-dir torch==2.6.0 --index-url https://download.pytorch.org/whl/cu124
RUN pip install --no-cache-dir packaging setuptools wheel ninja
RUN pip install --no-cache-dir --no-build-isolation flash-attn==2.7.4.post1
# A card that may be there or not is no need for one.
RUN nvidia-smi || echo "no GPU in the build, as expected"
HEALTHCHECK CMD nvidia-smi
