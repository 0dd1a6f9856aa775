"""What every Ray worker of a run does first: adapt itself to the stack, and tell how much memory it uses.

Named as Ray's ``worker_process_setup_hook``. On a CPU it also stands in for what verl expects of a GPU: memory calls
on ``torch.cpu``, a process group backend, and pinned memory.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

SAMPLES_ENVIRONMENT = "ENVBUILDER_SAMPLES"
DEVICE_ENVIRONMENT = "ENVBUILDER_DEVICE"
_EVERY_SECONDS = 0.1


def setup() -> None:
    """Run in a fresh worker, before it imports anything of verl."""
    on_gpu = os.environ.get(DEVICE_ENVIRONMENT) == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        stand_in_for_gpu()
    import envbuilder.smoke.external_lib  # noqa: F401

    folder = os.environ.get(SAMPLES_ENVIRONMENT)
    if folder:
        path = Path(folder) / f"memory-{os.getpid()}.jsonl"
        threading.Thread(target=_sample, args=(path, on_gpu), name="memory-sampler", daemon=True).start()


def stand_in_for_gpu() -> None:
    """Let verl run on a CPU: gloo instead of NCCL, memory calls that answer, pinned memory that is plain memory."""
    import torch
    import torch.distributed as dist
    import verl.utils.device

    from envbuilder.smoke.footprint import stand_in_for_cpu_memory

    stand_in_for_cpu_memory(on_gpu=False)
    verl.utils.device.get_nccl_backend = lambda: "gloo"
    torch.Tensor.pin_memory = lambda self, *_, **__: self
    # FSDP2 of torch 2.6 orders its work by events; on a CPU everything is in order already.
    torch.cpu.Stream.record_event = lambda self, event=None: event or torch.cpu.Event()
    torch.cpu.Stream.wait_event = lambda self, event: None
    original = dist.init_process_group

    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> None:
        original("gloo", *arguments, **named)

    dist.init_process_group = init_process_group


def _sample(path: Path, on_gpu: bool) -> None:
    """Write (time, bytes in use, bytes reserved) as JSON lines until the process ends."""
    import torch

    page = os.sysconf("SC_PAGE_SIZE")
    with path.open("a", encoding="ascii") as stream:
        while True:
            time.sleep(_EVERY_SECONDS)
            if not on_gpu:
                used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * page
                reserved = 0
            elif torch.cuda.is_initialized():
                used, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            else:
                continue
            stream.write(json.dumps([round(time.time(), 3), used, reserved]) + "\n")
            stream.flush()
