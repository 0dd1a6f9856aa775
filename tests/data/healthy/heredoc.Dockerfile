# syntax=docker/dockerfile:1
FROM ubuntu:22.04
RUN <<EOF
set -e
apt-get update
apt-get install -y --no-install-recommends ca-certificates curl
rm -rf /var/lib/apt/lists/*
EOF
COPY <<EOF /etc/motd
hello
EOF
