FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04
COPY constraints.txt /tmp/
RUN pip3 install torch==2.6.0+cu118 torchvision==0.21.0+cu118 --index-url https://download.pytorch.org/whl/cu118
RUN pip3 install -c /tmp/constraints.txt transformers==4.56.1 accelerate==1.10.1
RUN pip3 install --no-deps verl==0.5.0
