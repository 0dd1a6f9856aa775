"""Loading a stack and holding it against its card: a pin that cannot run there is an error, with file, key and cure."""

from __future__ import annotations

from pathlib import Path

from envbuilder import data
from envbuilder.errors import InputError, Place
from envbuilder.stack.compat.torch_builds import builds_for, find_build
from envbuilder.stack.fields import load_model
from envbuilder.stack.gpu import GpuProfile, load_gpu
from envbuilder.stack.model import Stack


def stack_names() -> list[str]:
    """The stacks of the project and the built-in ones."""
    return data.names("stacks", ".toml")


def load_stack(name_or_path: str) -> tuple[Stack, GpuProfile]:
    """The stack named (or at the path, when it ends in .toml) and its GPU profile, checked against one another.

    Raises InputError for an unknown key, a wrong type, or a pin that contradicts the card.
    """
    path = Path(name_or_path) if name_or_path.endswith(".toml") else data.find("stacks", f"{name_or_path}.toml")
    stack = load_model(Stack, path)
    if path.stem != stack.name:
        raise InputError(
            f"the stack is named {stack.name!r}, its file {path.name!r}",
            place=Place(str(path), field="name"),
            cure="Give both the same name: other files find the stack by it.",
        )
    gpu = load_gpu(stack.gpu)
    check_stack(stack, gpu, path)
    return stack, gpu


def check_stack(stack: Stack, gpu: GpuProfile, path: Path) -> None:
    """Raise InputError for the first pin of ``stack`` that cannot run on ``gpu``."""
    _check_compute(stack, gpu, path)
    _check_torch(stack, gpu, path)
    _check_cuda(stack, gpu, path)
    if (stack.debian is None) == (stack.image is None):
        raise InputError(
            "a stack has one base: either [debian] or [image]",
            place=Place(str(path)),
            cure="Keep the one you mean and remove the other.",
        )


def _check_compute(stack: Stack, gpu: GpuProfile, path: Path) -> None:
    dtype = gpu.dtypes.get(stack.compute.dtype)
    if dtype is None or not (dtype.native and dtype.usable):
        usable = [name for name, d in gpu.dtypes.items() if d.native and d.usable]
        raise InputError(
            f"{gpu.title} (capability {gpu.capability.value}) does not compute in {stack.compute.dtype}: "
            + (dtype.source if dtype else "the profile has no such dtype"),
            place=Place(str(path), field="compute.dtype"),
            cure=f"Use {' or '.join(usable)}.",
        )
    if stack.compute.attention == "flash_attention_2" and "flash" not in gpu.attention.allowed:
        raise InputError(
            f"flash_attention_2 does not run on {gpu.title}: {gpu.attention.source}",
            place=Place(str(path), field="compute.attention"),
            cure='Use "eager" or "sdpa".',
        )
    if stack.compute.compile and not gpu.triton.supported:
        raise InputError(
            f"torch.compile needs Triton, which needs capability {gpu.triton.minimum_capability}; "
            f"{gpu.title} has {gpu.capability.value}",
            place=Place(str(path), field="compute.compile"),
            cure="Set compile = false.",
        )


def _check_torch(stack: Stack, gpu: GpuProfile, path: Path) -> None:
    pin = stack.python.packages.get("torch")
    if pin is None:
        raise InputError(
            "the stack pins no torch", place=Place(str(path), field="python.packages"), cure="Add a pin for torch."
        )
    row = find_build(pin.version)
    place = Place(str(path), field="python.packages.torch.version")
    runs = [f"{version}+{tag}" for version, tag in builds_for(gpu.major_minor)]
    if row is None:
        raise InputError(
            f"nothing is known of torch {pin.version}: no row of the compatibility table names it",
            place=place,
            cure=f"Builds known to hold code for {gpu.sm}: {', '.join(runs)}.",
        )
    if not row.runs_on(gpu.major_minor):
        raise InputError(
            f"torch {pin.version} ({row.cuda}) holds no code for {gpu.sm}: it was built for {', '.join(row.arches)}",
            place=place,
            cure=f"Builds known to hold code for {gpu.sm}: {', '.join(runs)}.",
            detail=f"source ({row.status}): {row.source}",
        )


def _check_cuda(stack: Stack, gpu: GpuProfile, path: Path) -> None:
    for field, release in (("runtime", stack.cuda.runtime), ("toolkit", stack.cuda.toolkit)):
        number = tuple(int(part) for part in release.split(".")[:2])
        first, last = (tuple(int(part) for part in text.split(".")) for text in (gpu.cuda.first, gpu.cuda.last))
        if not first <= number <= last:
            raise InputError(
                f"CUDA {release} does not know {gpu.sm}",
                place=Place(str(path), field=f"cuda.{field}"),
                cure=f"Use a release from {gpu.cuda.first} to {gpu.cuda.last} ({gpu.cuda.source}).",
            )
