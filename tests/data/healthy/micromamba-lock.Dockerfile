FROM mambaorg/micromamba:jammy-cuda-11.8.0
COPY --chown=$MAMBA_USER:$MAMBA_USER conda-lock.yml /tmp/conda-lock.yml
RUN micromamba install -y -n base -f /tmp/conda-lock.yml && micromamba clean -ay
