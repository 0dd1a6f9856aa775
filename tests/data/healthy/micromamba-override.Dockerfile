FROM mambaorg/micromamba:jammy-cuda-11.8.0
ENV CONDA_OVERRIDE_CUDA=11.8
COPY environment.yml /tmp/env.yml
RUN micromamba install -y -n base -f /tmp/env.yml && micromamba clean -ay
