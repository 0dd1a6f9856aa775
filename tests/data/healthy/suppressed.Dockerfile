FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu20.04 # envbuilder: ignore[distribution-ended] the cluster's driver image is tested with it
RUN apt-get update
