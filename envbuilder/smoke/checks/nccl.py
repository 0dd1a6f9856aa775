"""NCCL on one card: the library loads, makes a communicator and reduces."""

from __future__ import annotations

from envbuilder.smoke.check import Need, Outcome, Spec, failed, passed
from envbuilder.smoke.context import Context


def run(context: Context) -> Outcome:
    """A group of one process: all_reduce and broadcast leave the values as they are."""
    import torch
    import torch.distributed as dist

    store = dist.HashStore()
    own = not dist.is_initialized()
    if own:
        dist.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        group = dist.group.WORLD if own else dist.new_group(backend="nccl")
        x = torch.arange(1000, dtype=torch.float32, device=context.device)
        before = x.clone()
        dist.all_reduce(x, group=group)
        dist.broadcast(x, 0, group=group)
        context.synchronize()
        same = torch.equal(x, before)
    finally:
        if own:
            dist.destroy_process_group()
    version = ".".join(map(str, torch.cuda.nccl.version()))
    if not same:
        return failed("a reduction over one process changed the values", "Run with NCCL_DEBUG=INFO.", nccl=version)
    return passed(f"NCCL {version}", nccl=version)


COLLECTIVES = Spec(
    "nccl", "NCCL on one card", "NCCL's kernels run on the card", run, limit_s=90, needs=frozenset({Need.GPU})
)
