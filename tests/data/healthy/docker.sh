#!/bin/sh
docker run --rm --gpus all --shm-size=16g -v "$PWD:/work" rl:cu118 python -m verl.trainer.main_ppo "$@"
docker build -t app .
docker run --rm -p 8000:8000 app
