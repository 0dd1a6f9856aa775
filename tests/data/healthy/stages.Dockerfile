# syntax=docker/dockerfile:1.7
FROM debian:12-slim AS base
ENV DEBIAN_FRONTEND=noninteractive \
    PYTHONUNBUFFERED=1
RUN apt-get update && apt-get install -y --no-install-recommends \
      # python
      python3 python3-venv \
      git \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/venv
ENV PATH="/opt/venv/bin:${PATH}"
COPY requirements.txt /tmp/
RUN --mount=type=cache,target=/root/.cache/pip pip install -r /tmp/requirements.txt
FROM base AS dev
RUN pip install pytest
FROM base
COPY --from=dev /opt/venv /opt/venv
HEALTHCHECK CMD curl -f http://localhost/ || exit 1
ENTRYPOINT ["python3", "-m", "app"]
