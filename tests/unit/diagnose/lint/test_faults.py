"""Every rule of lint, met by a small file with its fault; every slot of its texts has a value then."""

import pytest

from envbuilder.diagnose.lint import lint_text
from envbuilder.diagnose.rulebook import rules

CUDA = "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04\n"
ARCH = 'ENV TORCH_CUDA_ARCH_LIST="6.1"\n'
TORCH = "RUN pip install torch==2.6.0+cu118 --index-url https://download.pytorch.org/whl/cu118\n"
INDEX = "--extra-index-url https://download.pytorch.org/whl/cu118\n"
CLONE = "RUN git clone -b 25.05 https://github.com/NVIDIA/apex /apex\n"
EXT = '--no-build-isolation --config-settings "--build-option=--cuda_ext"'
PPO = "# verl 0.5.0\npython3 -m verl.trainer.main_ppo "
LOCK = "version: 1\nmetadata: {platforms: [linux-64]}\npackage:\n"
RUN_OF = "# verl 0.5.0\npython3 -m verl.trainer.main_ppo data.train_files=a.parquet actor_rollout_ref.model.path=m "


def env(channels: str, *deps: str) -> str:
    return f"name: a\nchannels: [{channels}]\ndependencies:\n" + "".join(f"  - {d}\n" for d in deps)


def conda(name: str, version: str, url: str, digest: str = "0" * 32, platform: str = "linux-64") -> str:
    return (
        f"- name: {name}\n  version: '{version}'\n  manager: conda\n  platform: {platform}\n"
        f"  url: {url}\n  hash: {{md5: '{digest}'}}\n"
    )


FORGE = "https://conda.anaconda.org/conda-forge/linux-64/"
FAULTS: dict[str, tuple[str, str]] = {
    "conda-pytorch-channel-ended": ("environment.yml", env("pytorch, nvidia", "pytorch>=2.6", "pytorch-cuda=11.8")),
    "conda-pytorch-cuda-without-nvidia": ("environment.yml", env("pytorch", "pytorch=2.5.1", "pytorch-cuda=11.8")),
    "conda-mkl-unpinned": ("environment.yml", env("pytorch, nvidia", "pytorch=2.0.1", "pytorch-cuda=11.8")),
    "conda-package-named-torch": ("environment.yml", env("conda-forge", "torch=2.5")),
    "conda-cpu-build": ("environment.yml", env("conda-forge", "pytorch=2.5.1=cpu_generic*", "cuda-version=11.8")),
    "conda-label-channel-order": (
        "environment.yml",
        env("conda-forge, nvidia/label/cuda-11.8.0", "cuda-toolkit=11.8", "python=3.10"),
    ),
    "conda-solve-takes-cpu-build": (
        "Dockerfile",
        "FROM condaforge/miniforge3\nRUN conda install -y -c conda-forge pytorch=2.5\n",
    ),
    "conda-solve-without-cuda-package": (
        "Dockerfile",
        'FROM condaforge/miniforge3\nRUN mamba install -y "pytorch=2.5=*cuda118*"\n',
    ),
    "two-cuda-providers": ("environment.yml", env("nvidia, conda-forge", "cudatoolkit=11.8", "cuda-runtime")),
    "two-cuda-versions": ("environment.yml", env("conda-forge", "cuda-version=12.4", "cudatoolkit=11.8")),
    "conda-toolkit-without-headers": (
        "environment.yml",
        env("nvidia/label/cuda-11.8.0", "cuda-nvcc=11.8", "pip") + "  - pip:\n    - git+https://github.com/a/b@c\n",
    ),
    "conda-and-pip-torch": (
        "environment.yml",
        env("conda-forge", "pytorch=2.5.1", "pip") + "  - pip:\n    - torch==2.6.0\n",
    ),
    "conda-lock-without-linux": ("conda-lock.yml", "version: 1\nmetadata: {platforms: [osx-64]}\npackage: []\n"),
    "lock-holds-virtual-package": ("conda-lock.yml", LOCK + conda("__cuda", "11.8", FORGE + "a.conda")),
    "lock-holds-local-file": ("conda-lock.yml", LOCK + conda("a", "1", "file:///tmp/linux-64/a-1-0.conda")),
    "lock-without-hash": ("conda-lock.yml", LOCK + conda("a", "1", FORGE + "a-1-0.conda", "")),
    "lock-holds-cpu-build": (
        "conda-lock.yml",
        LOCK + conda("pytorch", "2.5.1", FORGE + "pytorch-2.5.1-cpu_generic_py310_h1.conda"),
    ),
    "nvidia-packages-of-two-cudas": ("requirements.txt", "nvidia-nccl-cu11==2.21.5\nnvidia-nccl-cu12==2.21.5\n"),
    "cudnn-pin-contradicts-torch": ("requirements.txt", "torch==2.6.0\nnvidia-cudnn-cu12==8.9.7.29\n"),
    "two-cudnn-majors": ("requirements.txt", INDEX + "torch==2.6.0+cu118\ntensorflow==2.15.0\n"),
    "cuda-libraries-over-image": (
        "Dockerfile",
        "FROM pytorch/pytorch:2.6.0-cuda11.8-cudnn9-runtime\nRUN pip install nvidia-cublas-cu11\n",
    ),
    "library-path-hides-cudnn": (
        "Dockerfile",
        CUDA + "ENV LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu\n"
        "RUN pip install torch==2.0.1+cu118 --index-url https://download.pytorch.org/whl/cu118\n",
    ),
    "library-path-holds-cudnn": ("Dockerfile", CUDA + "ENV LD_LIBRARY_PATH=/usr/lib/x86_64-linux-gnu\n" + TORCH),
    "apt-library-of-another-cuda": (
        "Dockerfile",
        CUDA + "RUN apt-get install -y libcudnn8=8.9.7.29-1+cuda12.2\n",
    ),
    "apt-library-unpinned": ("Dockerfile", CUDA + "RUN apt-get update && apt-get install -y libcudnn8-dev\n"),
    "apt-second-toolkit": ("Dockerfile", CUDA + "RUN apt-get install -y nvidia-cuda-toolkit\n"),
    "driver-in-image": (
        "Dockerfile",
        "FROM ubuntu:22.04\nRUN apt-get update && apt-get install -y nvidia-driver-535-server\n",
    ),
    "lock-without-cuda-libraries": ("poetry.lock", '[[package]]\nname = "torch"\nversion = "2.6.0"\n'),
    "conda-cudnn-of-another-cuda": (
        "environment.yml",
        env("conda-forge", "cudnn=8.9.7.29=h092f7fd_3", "pip")
        + "  - pip:\n    - --extra-index-url https://download.pytorch.org/whl/cu118\n    - torch==2.6.0+cu118\n",
    ),
    "apex-from-default-index": ("setup.sh", "uv pip install apex\n"),
    "apex-unpinned": ("Dockerfile", CUDA + ARCH + f"RUN pip install {EXT} git+https://github.com/NVIDIA/apex.git\n"),
    "apex-tag-does-not-compile": (
        "Dockerfile",
        CUDA + ARCH + TORCH + "RUN git clone -b 24.04.01 https://github.com/NVIDIA/apex && cd apex"
        f" && pip install {EXT} .\n",
    ),
    "apex-ref-without-amp": (
        "Dockerfile",
        CUDA + ARCH + f"RUN git clone -b 25.09 https://github.com/NVIDIA/apex && cd apex && pip install {EXT} .\n"
        'RUN python -c "import apex.amp"\n',
    ),
    "apex-switch-ignored": (
        "Dockerfile",
        CUDA + ARCH + CLONE + "RUN APEX_CUDA_EXT=1 pip install --no-build-isolation /apex\n",
    ),
    "apex-without-extension-flags": (
        "Dockerfile",
        CUDA + ARCH + CLONE + "RUN pip install --no-build-isolation /apex\n",
    ),
    "pip-global-option": (
        "setup.sh",
        "git clone -b 25.05 https://github.com/NVIDIA/apex\npip install --global-option=--cuda_ext ./apex\n",
    ),
    "setup-py-from-elsewhere": (
        "Dockerfile",
        CUDA + ARCH + CLONE + "RUN python /apex/setup.py install --cuda_ext\n",
    ),
    "needs-no-build-isolation": ("requirements.txt", "torch==2.6.0\ncausal-conv1d==1.4.0\n"),
    "extension-build-without-arch-list": (
        "Dockerfile",
        CUDA + TORCH + CLONE + f"RUN cd /apex && pip install {EXT} .\n",
    ),
    "arch-list-malformed": ("setup.sh", "export TORCH_CUDA_ARCH_LIST=sm_61\n"),
    "arch-list-misses-card": ("Dockerfile", CUDA + 'ENV TORCH_CUDA_ARCH_LIST="7.0;8.0+PTX"\n'),
    "arch-beyond-toolkit": ("Dockerfile", CUDA + 'ENV TORCH_CUDA_ARCH_LIST="6.1;12.0"\n'),
    "gencode-misses-card": ("setup.py", 'flags = ["-O3", "-arch=sm_80"]\n'),
    "base-cuda-differs-from-torch": (
        "Dockerfile",
        "FROM nvidia/cuda:12.6.3-devel-ubuntu22.04\n" + ARCH + TORCH + CLONE + f"RUN cd /apex && pip install {EXT} .\n",
    ),
    "base-cuda-minor-differs": (
        "Dockerfile",
        "FROM nvidia/cuda:12.6.3-devel-ubuntu22.04\n"
        + ARCH
        + "RUN pip install torch==2.6.0+cu124 --index-url https://download.pytorch.org/whl/cu124\n"
        + "RUN pip install --no-build-isolation causal-conv1d==1.4.0\n",
    ),
    "build-on-runtime-image": (
        "Dockerfile",
        CUDA.replace("devel", "runtime") + ARCH + "RUN pip install --no-build-isolation mamba-ssm==2.2.2\n",
    ),
    "build-without-max-jobs": (
        "Dockerfile",
        "# GPU: A100\n"
        + CUDA
        + 'ENV TORCH_CUDA_ARCH_LIST="8.0"\nRUN pip install --no-build-isolation flash-attn==2.7.4\n',
    ),
    "host-compiler-too-new": ("environment.yml", env("conda-forge", "cuda-version=12.1", "cuda-nvcc=12.1", "gxx=13.2")),
    "cuda-home-differs-from-torch": (
        "setup.sh",
        "export CUDA_HOME=/usr/local/cuda-12.1\n"
        "pip install torch==2.6.0+cu118 --index-url https://download.pytorch.org/whl/cu118\n",
    ),
    "dockerfile-unparsable": ("Dockerfile", "FROM ubuntu:22.04\nRUNN echo\n"),
    "image-tag-nonexistent": ("Dockerfile", "FROM nvidia/cuda:12.6.3-cudnn8-devel-ubuntu22.04\n"),
    "cuda-too-new-for-card": ("Dockerfile", "FROM nvidia/cuda:13.0.1-devel-ubuntu22.04\n"),
    "image-torch-no-code": ("Dockerfile", "FROM pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime\n"),
    "distribution-ended": ("Dockerfile", "FROM debian:buster-slim\nRUN true\n"),
    "deadsnakes-on-ended-release": ("Dockerfile", "FROM ubuntu:20.04\nRUN add-apt-repository -y ppa:deadsnakes/ppa\n"),
    "arg-out-of-scope": ("Dockerfile", "ARG TAG=cu118\nFROM python:3.10\nRUN pip install a -i https://x/whl/$TAG\n"),
    "apt-key-withdrawn": (
        "Dockerfile",
        CUDA + "RUN apt-key adv --fetch-keys https://developer.download.nvidia.com/7fa2af80.pub\n",
    ),
    "no-compiler-in-final-stage": (
        "Dockerfile",
        "# GPU: A100\nFROM nvidia/cuda:12.4.1-runtime-ubuntu22.04\nRUN pip3 install unsloth==2025.3.1\n",
    ),
    "compose-without-shm": ("compose.yaml", "services:\n  a: {image: x, command: ray start, gpus: all}\n"),
    "compose-without-gpu": ("compose.yaml", "services:\n  a: {image: 'vllm/vllm-openai', shm_size: 8gb}\n"),
    "compose-gpu-without-capability": (
        "compose.yaml",
        "services:\n  a:\n    image: x\n"
        "    deploy: {resources: {reservations: {devices: [{driver: nvidia, count: 1}]}}}\n",
    ),
    "compose-count-and-ids": (
        "compose.yaml",
        "services:\n  a:\n    image: x\n    deploy:\n      resources:\n        reservations:\n          devices:\n"
        "            - {driver: nvidia, count: 1, device_ids: ['0'], capabilities: [gpu]}\n",
    ),
    "visible-devices-beyond-container": (
        "start.sh",
        'docker run --gpus "device=2" -e CUDA_VISIBLE_DEVICES=2 --ipc=host img train\n',
    ),
    "driver-capabilities-without-compute": ("Dockerfile", CUDA + "ENV NVIDIA_DRIVER_CAPABILITIES=graphics,utility\n"),
    "docker-run-without-shm": ("start.sh", "docker run --gpus all rl python -m verl.trainer.main_ppo\n"),
    "docker-run-without-gpu": ("start.sh", "docker run --ipc=host rl:cu118 python train.py\n"),
    "context-without-dockerignore": ("context.txt", "2.0G ./data/train.parquet\n1K ./Dockerfile\n"),
    "requirement-unreadable": ("requirements.txt", "numpy=>1.26\n?what\n"),
    "requirements-several-on-a-line": ("requirements.txt", "numpy==1.26.4 pandas==2.2.3\n"),
    "requirement-twice": ("requirements.txt", "numpy==1.26.4\nNumPy>=2\n"),
    "requirement-triple-equals": ("Dockerfile", CUDA + 'ENV V="=2.6.0"\nRUN pip install torch==${V}\n'),
    "shell-unquoted-specifier": ("setup.sh", "pip install transformers>=4.51\n"),
    "pytorch-index-alone": (
        "setup.sh",
        "pip install torch==2.6.0 transformers --index-url https://download.pytorch.org/whl/cu118\n",
    ),
    "index-without-tag": (
        "Dockerfile",
        'FROM ubuntu:22.04\nRUN V=""; pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cu$V\n',
    ),
    "torch-upgraded-later": (
        "Dockerfile",
        CUDA + TORCH + "RUN pip install --upgrade torch --index-url https://download.pytorch.org/whl/cu118\n",
    ),
    "torch-pinned-twice": ("setup.sh", "pip install torch==2.6.0\npip install torch==2.5.1\n"),
    "torch-unpinned-over-image": (
        "Dockerfile",
        "FROM pytorch/pytorch:2.6.0-cuda11.8-cudnn9-devel\nRUN pip install torchvision\n",
    ),
    "later-install-may-replace-torch": ("Dockerfile", CUDA + TORCH + "RUN pip install xformers\n"),
    "requirements-contradict": ("requirements.txt", "verl==0.5.0\nnumpy==2.1.0\n"),
    "pip-externally-managed": (
        "Dockerfile",
        "FROM ubuntu:24.04\nRUN apt-get update && apt-get install -y python3-pip\nRUN pip3 install requests\n",
    ),
    "pip-package-named-pytorch": ("requirements.txt", "pytorch==2.6.0\n"),
    "pip-package-of-conda": ("requirements.txt", "cudatoolkit==11.8\n"),
    "package-name-misspelt": ("requirements.txt", "transfomers==4.56.1\n"),
    "stack-wrong": ("a.stack.toml", 'schema = 1\nname = "a"\ngpu = "p40"\n[python]\nversion = "3.10"\n'),
    "stack-contradicts-image": (
        "a.stack.toml",
        'image = "x/y:torch2.7.1-cu126"\n[packages]\ntorch = "2.6.0"\n',
    ),
    "variable-misnamed": ("setup.sh", "export TORCH_CUDA_ARCH=6.1\n"),
    "variable-nobody-reads": ("setup.sh", "export TRITON_MAX_SHARED_MEMORY=49152\n"),
    "secret-in-file": ("Dockerfile", CUDA + "ENV HF_TOKEN=hf_" + "a1B2" * 8 + "\n"),
    "suppression-without-reason": ("requirements.txt", "numpy  # envbuilder: ignore[requirement-twice]\n"),
    "file-unreadable": ("compose.yaml", "services: [\n"),
    "torch-build-no-code": ("requirements.txt", "torch==2.8.0\n"),
    "torch-build-nonexistent": ("setup.sh", "pip install torch==2.8.0 -i https://download.pytorch.org/whl/cu118\n"),
    "torch-tag-not-on-index": (
        "requirements.txt",
        "--extra-index-url https://download.pytorch.org/whl/cu126\ntorch==2.6.0+cu118\n",
    ),
    "torch-tag-without-index": ("setup.sh", "pip install torch==2.6.0+cu118\n"),
    "torch-unpinned": ("Dockerfile", CUDA + "RUN pip install torch transformers==4.56.1\n"),
    "torch-pin-without-tag": (
        "setup.sh",
        "pip install torch==2.6.0\npip install torchvision==0.21.0+cu118 -i https://download.pytorch.org/whl/cu118\n",
    ),
    "torch-family-mismatch": ("requirements.txt", "torch==2.6.0\ntorchvision==0.20.1\n"),
    "torch-family-tags-differ": (
        "requirements.txt",
        "-f https://download.pytorch.org/whl/torch_stable.html\ntorch==2.6.0+cu118\ntorchaudio==2.6.0+cu124\n",
    ),
    "torch-from-cpu-index": (
        "Dockerfile",
        CUDA + "RUN pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cpu\n",
    ),
    "package-needs-newer-card": ("requirements.txt", "sglang==0.4.6\n"),
    "built-for-another-torch": ("requirements.txt", "torch==2.6.0\nxformers==0.0.28.post3\n"),
    "verl-key-unknown": ("run.sh", PPO + "actor_rollout_ref.rollout.val_temperature=0.6\n"),
    "verl-key-needs-plus": ("run.sh", PPO + "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32\n"),
    "verl-override-changes-nothing": ("run.sh", PPO + "++actor_rollout_ref.fsdp_config.cpu_offload=True\n"),
    "verl-plus-on-existing-key": ("run.sh", PPO + "+trainer.nnodes=1\n"),
    "verl-key-unknown-in-file": ("a.verl.yaml", "actor_rollout_ref:\n  rollout: {temprature: 1}\n"),
    "verl-attention-override-unread": (
        "run.sh",
        PPO + "+actor_rollout_ref.model.override_config.attn_implementation=sdpa\n",
    ),
    "bf16-on-old-card": ("run.sh", PPO + "actor_rollout_ref.rollout.dtype=bfloat16\n"),
    "fp16-slow-on-card": ("run.sh", PPO + "actor_rollout_ref.rollout.dtype=half\n"),
    "verl-rollout-needs-newer-card": ("run.sh", PPO + "actor_rollout_ref.rollout.name=sglang\n"),
    "verl-hf-rollout-gone": (
        "run.sh",
        "# verl==0.6.1\npython -m verl.trainer.main_ppo actor_rollout_ref.rollout.name=hf\n",
    ),
    "verl-vllm-key-under-hf": (
        "run.sh",
        PPO + "actor_rollout_ref.rollout.name=hf actor_rollout_ref.rollout.gpu_memory_utilization=0.4\n",
    ),
    "verl-remove-padding-needs-flash-attn": ("run.sh", PPO + "actor_rollout_ref.model.use_remove_padding=True\n"),
    "verl-torch-compile-on-old-card": ("run.sh", RUN_OF + "actor_rollout_ref.rollout.name=hf\n"),
    "verl-fsdp2-offload-policy": (
        "run.sh",
        PPO + "actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.optimizer_offload=True\n",
    ),
    "verl-host-memory-at-save": (
        "a.verl.yaml",
        "# RAM 32 GB, model 3B\ntrainer: {save_freq: 5}\nactor_rollout_ref:\n  actor:\n"
        "    fsdp_config: {param_offload: true, optimizer_offload: true}\n",
    ),
    "verl-batch-indivisible": ("run.sh", PPO + "data.train_batch_size=5 trainer.n_gpus_per_node=2\n"),
    "verl-mini-batch-too-large": (
        "run.sh",
        PPO + "data.train_batch_size=8 actor_rollout_ref.actor.ppo_mini_batch_size=16\n",
    ),
    "verl-tensor-parallel-too-large": (
        "run.sh",
        PPO + "actor_rollout_ref.rollout.tensor_model_parallel_size=2 trainer.n_gpus_per_node=1\n",
    ),
    "verl-grpo-with-one-sample": ("run.sh", PPO + "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=1\n"),
    "verl-kl-coef-unused": ("run.sh", PPO + "algorithm.kl_ctrl.kl_coef=0.001\n"),
    "verl-data-not-parquet": ("run.sh", PPO + "data.train_files=/data/train.jsonl\n"),
    "verl-raw-data": ("a.schema.json", '{"columns": ["prompt", "chosen_response", "rejected_response"]}\n'),
    "verl-prompt-not-messages": (
        "a.schema.json",
        '{"columns": {"data_source": "string", "prompt": "string", "reward_model": "struct<ground_truth: string>"}}\n',
    ),
    "verl-needs-patches": ("a.stack.toml", '[target]\ngpus = ["T4"]\n[verl]\nrev = "v0.5.0"\n'),
    "verl-unpinned": (
        "a.target.toml",
        '[target]\ngpus = ["P40"]\n[verl]\ngit = "https://github.com/volcengine/verl"\n',
    ),
    "verl-commit-nonexistent": (
        "a.stack.toml",
        '[target]\ngpus = ["P40"]\n[verl]\nrev = "a3f7e2d"\npatches = ["p40"]\n',
    ),
    "run-changes-only-its-shell": ("Dockerfile", CUDA + "RUN export TORCH_CUDA_ARCH_LIST=6.1\n"),
    "conda-activate-without-hook": ("setup.sh", "#!/bin/bash\nconda create -y -n a\nconda activate a\n"),
    "index-from-nvidia-smi": (
        "setup.sh",
        "V=$(nvidia-smi | grep 'CUDA Version' | tr -dc 0-9)\n"
        "pip install torch==2.6.0 --index-url https://download.pytorch.org/whl/cu$V\n",
    ),
    "torch-backend-auto": ("setup.sh", "uv pip install torch==2.6.0 --torch-backend=auto\n"),
    "apt-without-update": ("Dockerfile", CUDA + "RUN apt-get install -y git\n"),
    "apt-without-yes": ("Dockerfile", CUDA + "RUN apt-get update && apt-get install git\n"),
    "wheel-built-for-another": (
        "setup.sh",
        "pip install torch==2.6.0\npip install https://x.org/flash_attn-2.7.4.post1+cu12torch2.5cxx11abiTRUE-cp310-cp310-linux_x86_64.whl\n",
    ),
    "package-of-another-cuda": ("requirements.txt", INDEX + "torch==2.6.0+cu118\ncupy-cuda12x==13.3.0\n"),
    "flash-attn-unpinned": (
        "Dockerfile",
        "# GPU: A100\nFROM pytorch/pytorch:2.6.0-cuda12.4-cudnn9-devel\n"
        'ENV MAX_JOBS=2 TORCH_CUDA_ARCH_LIST="8.0"\nRUN pip install flash-attn --no-build-isolation\n',
    ),
    "conda-cudatoolkit-ignored": ("environment.yml", env("pytorch", "pytorch", "cudatoolkit=11.3")),
    "requirement-local-file": (
        "requirements.txt",
        "certifi @ file:///croot/certifi_1690232220950/work/certifi\n",
    ),
    "requirement-conda-syntax": ("setup.sh", "pip install numpy=1.26.4\n"),
    "requirement-of-the-system": ("requirements.txt", "pkg-resources==0.0.0\n"),
    "build-requirements-missing": (
        "Dockerfile",
        CUDA + ARCH + TORCH + CLONE + f"RUN cd /apex && pip install {EXT} .\n",
    ),
    "verl-micro-batch-twice": (
        "run.sh",
        PPO + "critic.ppo_micro_batch_size=4 critic.ppo_micro_batch_size_per_gpu=1\n",
    ),
    "verl-micro-batch-missing": ("run.sh", RUN_OF + "critic.ppo_micro_batch_size_per_gpu=1\n"),
    "verl-more-gpus-than-visible": (
        "run.sh",
        "export CUDA_VISIBLE_DEVICES=0\n" + PPO + "trainer.n_gpus_per_node=2\n",
    ),
    "distro-toolkit-differs-from-torch": (
        "Dockerfile",
        "FROM ubuntu:22.04\nRUN apt-get update && apt-get install -y nvidia-cuda-toolkit\n"
        + ARCH
        + TORCH
        + CLONE
        + f"RUN pip install packaging && cd /apex && pip install {EXT} .\n",
    ),
    "card-needed-in-build": ("Dockerfile", CUDA + TORCH + "RUN nvidia-smi && python3 train.py --help\n"),
    "stubs-on-library-path": (
        "Dockerfile",
        CUDA + "ENV LD_LIBRARY_PATH=/usr/local/cuda/lib64/stubs:$LD_LIBRARY_PATH\n",
    ),
    "wheel-on-musl": ("Dockerfile", "FROM python:3.11-alpine\n" + TORCH),
    "continuation-broken": ("run.sh", "python3 -m verl.trainer.main_ppo \\ \n  trainer.nnodes=1\n"),
    "uv-index-undeclared": (
        "pyproject.toml",
        '[project]\nname = "x"\nversion = "0"\n[tool.uv.sources]\ntorch = { index = "pytorch-cu118" }\n',
    ),
    "driver-outside-card": ("a.target.toml", '[target]\ngpus = ["P40"]\ndriver = "590.48.01"\n'),
}


def test_every_file_rule_has_a_fault() -> None:
    assert set(FAULTS) == {rule.id for rule in rules().values() if rule.kind == "file"}


@pytest.mark.parametrize("rule", FAULTS)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_the_fault_is_found_and_said_in_full(rule: str, lang: str) -> None:
    name, text = FAULTS[rule]
    result = lint_text(name, text, lang=lang)  # type: ignore[arg-type]
    found = [f for f in result.findings if f.rule == rule]
    assert found, [f.rule for f in result.findings]
    for finding in found:
        said = " ".join([finding.title, finding.cause, finding.cure, *finding.not_help])
        assert "(not known)" not in said
        assert "（未知）" not in said
        assert finding.place.line is None or 1 <= finding.place.line <= len(text.splitlines())
