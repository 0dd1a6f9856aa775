"""Runs verl's own ``run_ppo``: ``python -m envbuilder.smoke.launch OVERRIDE...`` (hydra's overrides).

Ray is started here rather than by verl, so that its workers set themselves up first (``envbuilder.smoke.ray_worker``),
and so that a machine without a GPU can stand in for one. With RAY_ADDRESS set, the cluster there is joined instead.
verl's files and its trainer are as they are.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, TextIO

from envbuilder.smoke.ray_worker import DEVICE_ENVIRONMENT, SAMPLES_ENVIRONMENT, stand_in_for_gpu

_HANDED_ON = ("ENVBUILDER_STACK", "ENVBUILDER_GUARD", DEVICE_ENVIRONMENT, SAMPLES_ENVIRONMENT, "PYTHONPATH",
              "HF_HUB_OFFLINE", "CUDA_DEVICE_ORDER", "NVIDIA_TF32_OVERRIDE")  # fmt: skip
# Logical cores: verl asks for three for its workers and one for its main task; the machine may have fewer.
_CORES = 6
_OBJECT_STORE_BYTES = 256 * 2**20
# What verl's main task prints after its last step (verl 0.5.0, trainer/ppo/ray_trainer.py, fit).
_LAST_WORD = "Final validation metrics"
# Without it (verl only validated, say) nothing is lost but this time.
_LAST_WORD_S = 15.0


class Listening:
    """Standard output as it is, that notes when ``word`` goes through it."""

    def __init__(self, stream: TextIO, word: str) -> None:
        self._stream = stream
        self._word = word
        self.heard = threading.Event()

    def write(self, text: str) -> int:
        """Write ``text`` on; as a stream does."""
        if self._word in text:
            self.heard.set()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def main(overrides: list[str]) -> int:
    """Compose verl's configuration, start Ray, train."""
    guarded = os.environ.pop("ENVBUILDER_GUARD", None)  # the driver computes nothing: only workers are guarded
    import envbuilder.smoke.external_lib  # noqa: F401

    on_cpu = os.environ.get(DEVICE_ENVIRONMENT) != "cuda"
    if on_cpu:
        stand_in_for_gpu()
    import ray
    import verl.trainer
    from hydra import compose, initialize_config_dir
    from verl.trainer.main_ppo import run_ppo

    folder = Path(verl.trainer.__file__).with_name("config")
    with initialize_config_dir(str(folder), version_base=None):
        config = compose("ppo_trainer", overrides=overrides)
    joining = "RAY_ADDRESS" in os.environ
    # One machine: the loopback serves, also in a container that has no other network.
    environment = {} if joining else {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    environment |= {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    if guarded:
        environment["ENVBUILDER_GUARD"] = guarded
    if on_cpu:
        # Ray refuses to lend a GPU that CUDA_VISIBLE_DEVICES hides; the workers hide it once they are connected.
        os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    # Ray's sockets live below this folder, and a socket's path may have 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as scratch:
        own = {"num_cpus": _CORES, "num_gpus": 1, "include_dashboard": False, "_temp_dir": scratch,
               "object_store_memory": _OBJECT_STORE_BYTES}  # fmt: skip
        ray.init(
            **({} if joining else own),
            runtime_env={
                "env_vars": environment,
                "worker_process_setup_hook": "envbuilder.smoke.ray_worker.setup",
            },
        )
        output = Listening(sys.stdout, _LAST_WORD)
        try:
            with contextlib.redirect_stdout(output):
                run_ppo(config)
                # Ray brings what its workers print after a while, and on a busy host the last step would be lost.
                output.heard.wait(_LAST_WORD_S)
        finally:
            ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
