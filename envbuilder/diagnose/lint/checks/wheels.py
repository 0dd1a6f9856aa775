"""Files and packages that carry their build in the name: torch, CUDA, C++ ABI, Python of a wheel against the rest."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import numbers, torch_tag
from envbuilder.diagnose.lint.model import Base, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.torch_builds import find_build

_SUFFIX = re.compile(r"^(?!nvidia-)(.+?)-cu(?:da)?(\d{2,3})x?$")


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for base, steps in recipe.environments():
        torch, where = _torch(base, steps)
        if torch is None:
            continue
        tag = torch_tag(torch, where) if where else f"cu{base.cuda.replace('.', '')}" if base else ""
        for step in steps:
            for requirement in step.requirements:
                if requirement.conda or requirement.name in ("torch", ""):
                    continue
                yield from _wheel(torch, tag, _python(base, steps), requirement)
                yield from _suffix(torch, tag, requirement)
                if requirement.name == "flash-attn" and not requirement.specifier and not requirement.url and step.argv:
                    yield Hit(
                        "flash-attn-unpinned", requirement.line, (torch.raw, requirement.raw), {"torch": torch.number}
                    )


def _torch(base: Base | None, steps: list[Step]) -> tuple[Requirement | None, Step | None]:
    for step in steps:
        for requirement in step.requirements:
            if requirement.name == "torch" and requirement.version and "$" not in requirement.version:
                return requirement, step
    if base is not None and base.torch and base.cuda:
        return Requirement("torch", f"=={base.torch}", base.text, base.line), None
    return None, None


def _python(base: Base | None, steps: list[Step]) -> str:
    """The Python of an environment as 3.10, where the file says it."""
    for step in steps:
        for requirement in step.requirements:
            if requirement.conda and requirement.name == "python" and requirement.version.count("."):
                return ".".join(requirement.version.split(".")[:2])
    match = re.match(r"(\d\.\d+)", base.tag) if base and base.image == "python" else None
    return match.group(1) if match else ""


def _wheel(torch: Requirement, tag: str, python: str, requirement: Requirement) -> Iterator[Hit]:
    name = re.sub(r"[#?].*$", "", requirement.url).rsplit("/", 1)[-1].replace("%2B", "+")
    if not name.endswith(".whl"):
        return
    clashes: list[tuple[str, str]] = []
    built = re.search(r"torch(\d+\.\d+)", name)
    if built and numbers(built.group(1))[:2] != numbers(torch.number)[:2]:
        clashes.append((f"torch {built.group(1)}", torch.number))
    cuda = re.search(r"[+.]cu(\d{2,3})(?=torch|[.-]|$)", name)
    if cuda and tag.startswith("cu") and cuda.group(1)[:2] != tag[2:4]:
        clashes.append((f"CUDA {cuda.group(1)[:2]} (cu{cuda.group(1)})", tag))
    abi = re.search(r"cxx11abi(TRUE|FALSE)", name, re.IGNORECASE)
    row = find_build(f"{torch.number}+{tag}") if tag else None
    if abi and row and row.cxx11_abi is not None and (abi.group(1).upper() == "TRUE") != row.cxx11_abi:
        clashes.append((f"the C++ ABI cxx11abi{abi.group(1).upper()}", f"cxx11abi{str(row.cxx11_abi).upper()}"))
    interpreter = re.search(r"-cp(3)(\d+)-cp3", name)
    if interpreter and python and f"3.{interpreter.group(2)}" != python:
        clashes.append((f"Python 3.{interpreter.group(2)}", python))
    if clashes:
        yield Hit(
            "wheel-built-for-another",
            requirement.line,
            (torch.raw, name),
            {
                "name": requirement.name or name,
                "wheel": "; ".join(a for a, _ in clashes),
                "here": "; ".join(b for _, b in clashes),
            },
        )


def _suffix(torch: Requirement, tag: str, requirement: Requirement) -> Iterator[Hit]:
    match = _SUFFIX.match(requirement.name)
    if match and tag.startswith("cu") and match.group(2)[:2] != tag[2:4] and match.group(2)[:2] in ("11", "12", "13"):
        yield Hit(
            "package-of-another-cuda",
            requirement.line,
            (torch.raw, requirement.raw),
            {"name": requirement.name, "cuda": match.group(2)[:2], "torch": torch.raw, "tag": tag},
        )
