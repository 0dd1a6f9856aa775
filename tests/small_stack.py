"""A small real stack, a part of p40-debian: its Debian base, Python, a few wheels, one sdist."""

from envbuilder.lock.model import Lock
from envbuilder.lock.reading import load_lock
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack

# setuptools builds the sdist; pyyaml holds a compiled module.
SMALL = ("setuptools", "antlr4-python3-runtime", "idna", "packaging", "pyyaml")


def small_stack() -> tuple[Stack, GpuProfile, Lock]:
    """The stack, its card and its lock; nothing is fetched."""
    stack, gpu = load_stack("p40-debian")
    whole = load_lock(stack)
    pins = {name: pin for name, pin in stack.python.packages.items() if name in SMALL}
    part = stack.python.model_copy(update={"packages": pins})
    stack = stack.model_copy(update={"name": "small", "title": "A small stack for tests", "python": part})
    assert whole.debian is not None
    base = whole.debian.model_copy(update={"packages": tuple(d for d in whole.debs if d.target == "runtime")})
    python = tuple(a for a in whole.python if a.name in SMALL)
    return stack, gpu, whole.model_copy(update={"stack": "small", "python": python, "debian": base})
