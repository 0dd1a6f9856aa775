"""What an image build lacks or must not bring: a GPU, the host's driver, the C library that wheels are built for."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.model import Hit, Recipe, Step

_DRIVER = re.compile(
    r"^(nvidia-(driver|headless|dkms|utils|compute-utils)(-no-dkms)?(-\d+)?(-server|-open)*|nvidia-smi|libcuda1"
    r"|nvidia-(open-)?kernel-dkms|libnvidia-compute-\d+(-server)?|cuda-drivers(-\d+)?|cuda|cuda-\d+-\d+)$"
)
_NEEDS_CARD = re.compile(r"assert\s+torch\.cuda\.is_available\(\)|\.(?:to|device)\(['\"]cuda|\)\.cuda\(\)")
# The step may fail without harm, or runs only where there is a card.
_TOLERANT = re.compile(r"\|\||\bif\b|command -v|which nvidia-smi|\bset \+e\b")
_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s")
_TORCH_FAMILY = ("torch", "torchvision", "torchaudio", "vllm", "verl", "triton")


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module; Dockerfiles only."""
    for step in recipe.steps:
        yield from _driver(step)
        yield from _uses_card(recipe, step)
    yield from _stubs(recipe)
    yield from _musl(recipe)


def _driver(step: Step) -> Iterator[Hit]:
    if step.tool != "apt" or step.verb != "install":
        return
    for requirement in step.requirements:
        if _DRIVER.match(requirement.name):
            yield Hit("driver-in-image", requirement.line, (requirement.raw,), {"name": requirement.name})


def _uses_card(recipe: Recipe, step: Step) -> Iterator[Hit]:
    what = ""
    if step.argv[:1] == ["nvidia-smi"]:
        what = "nvidia-smi"
    elif step.argv and re.match(r"python[\d.]*$", step.argv[0].rsplit("/", 1)[-1]):
        match = _NEEDS_CARD.search(" ".join(step.argv))
        what = match.group(0) if match else ""
    if what and _instruction(recipe, step) == "RUN" and not _TOLERANT.search(_text(recipe, step)):
        yield Hit("card-needed-in-build", step.line, (step.text.splitlines()[0],), {"what": what})


def _instruction(recipe: Recipe, step: Step) -> str:
    """The Dockerfile instruction that a step belongs to, in capitals."""
    first = step.line
    while first > 1 and recipe.lines[first - 2].rstrip().endswith("\\"):
        first -= 1
    match = _INSTRUCTION.match(recipe.lines[first - 1])
    return match.group(1).upper() if match else ""


def _text(recipe: Recipe, step: Step) -> str:
    """The line of a step with the lines that continue it."""
    lines = []
    for line in recipe.lines[step.line - 1 :]:
        lines.append(line)
        if not line.rstrip().endswith("\\"):
            break
    return "\n".join(lines)


def _stubs(recipe: Recipe) -> Iterator[Hit]:
    for variable in recipe.env:
        if variable.name == "LD_LIBRARY_PATH" and variable.kind == "ENV" and "/stubs" in variable.value:
            yield Hit("stubs-on-library-path", variable.line, (f"{variable.name}={variable.value}",))


def _musl(recipe: Recipe) -> Iterator[Hit]:
    for base, steps in recipe.environments():
        if base is None or not (base.image == "alpine" or re.search(r"(^|[-:])alpine", base.tag)):
            continue
        for step in steps:
            wheel = next((r for r in step.requirements if step.tool == "pip" and r.name in _TORCH_FAMILY), None)
            if wheel is not None:
                yield Hit(
                    "wheel-on-musl",
                    base.line,
                    (f"FROM {base.text}", wheel.raw),
                    {"image": base.text, "name": wheel.name},
                )
                break
