"""What every Ray worker of a run does first: adapt itself to the stack, and tell how much memory it uses.

Named as Ray's ``worker_process_setup_hook``. On a CPU it also stands in for what verl expects of a GPU: memory calls
on ``torch.cpu``, a process group backend, and pinned memory.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLES_ENVIRONMENT = "ENVBUILDER_SAMPLES"
DEVICE_ENVIRONMENT = "ENVBUILDER_DEVICE"
_EVERY_SECONDS = 0.1


def setup() -> None:
    """Run in a fresh worker, before it imports anything of verl.

    The guard is not started here: verl imports ``external_lib`` in the workers that compute, and that starts it there.
    In every worker it would make a CUDA context, and take memory of the card, where nothing is computed.
    """
    from envbuilder.smoke import adapt, placement
    from envbuilder.smoke.manifest import IMAGE_MANIFEST, load_manifest

    compute = load_manifest(Path(os.environ.get("ENVBUILDER_STACK", IMAGE_MANIFEST))).stack["compute"]
    adapt.install(compute["dtype"], compute["attention"])
    on_gpu = os.environ.get(DEVICE_ENVIRONMENT) == "cuda"
    if not on_gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        stand_in_for_gpu()
    folder = os.environ.get(SAMPLES_ENVIRONMENT)
    if folder:
        sampler = _Sampler(Path(folder) / f"memory-{os.getpid()}.jsonl", on_gpu)
        placement.listen(sampler.sample)
        threading.Thread(target=sampler.run, name="memory-sampler", daemon=True).start()


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
    torch.cpu.get_device_name = lambda *_: "cpu"
    original = dist.init_process_group

    def init_process_group(backend: Any = None, *arguments: Any, **named: Any) -> None:
        original("gloo", *arguments, **named)

    dist.init_process_group = init_process_group
    for name in ("all_reduce", "reduce_scatter_tensor"):
        setattr(dist, name, _without_average(getattr(dist, name)))


def _without_average(collective: Callable[..., Any]) -> Callable[..., Any]:
    """The collective with a sum of parts for an average, which gloo lacks."""
    import torch.distributed as dist

    @functools.wraps(collective)
    def summing(*arguments: Any, **named: Any) -> Any:
        if named.get("op") == dist.ReduceOp.AVG:
            named["op"] = dist.ReduceOp.SUM
            # The last tensor is what goes in: all_reduce(tensor), reduce_scatter_tensor(output, input).
            (named["input"] if "input" in named else named["tensor"] if "tensor" in named else arguments[-1]).div_(
                dist.get_world_size(named.get("group"))
            )
        return collective(*arguments, **named)

    return summing


class _Sampler:
    """Writes (time, bytes in use, bytes reserved) as JSON lines: ten times a second, which finds the peaks, and at the
    begin of every phase, where the same is in use in every step unless something leaks."""

    def __init__(self, path: Path, on_gpu: bool) -> None:
        self._stream = path.open("a", encoding="ascii")
        self._on_gpu = on_gpu
        self._lock = threading.Lock()

    def run(self) -> None:
        """Sample until the process ends."""
        while True:
            time.sleep(_EVERY_SECONDS)
            self.sample()

    def sample(self) -> None:
        """Write one line; none before the process uses the card."""
        import torch

        with self._lock:
            if not self._on_gpu:
                pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
                used, reserved = pages * os.sysconf("SC_PAGE_SIZE"), 0
            elif torch.cuda.is_initialized():
                used, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            else:
                return
            self._stream.write(json.dumps([round(time.time(), 3), used, reserved]) + "\n")
            self._stream.flush()
