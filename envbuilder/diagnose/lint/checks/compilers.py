"""Host compilers that nvcc refuses: apt's g++-13, conda's gxx 12, the distribution's own."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import numbers
from envbuilder.diagnose.lint.checks.extensions import builds_extension
from envbuilder.diagnose.lint.model import Base, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.cuda import distro, toolkit


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for base, steps in recipe.environments():
        yield from _compiler(base, steps)


def _compiler(base: Base | None, steps: list[Step]) -> Iterator[Hit]:
    """A host compiler that nvcc refuses: apt's g++-13, conda's gxx 12, the distribution's own."""
    release = base.cuda if base else ""
    for step in steps:
        for requirement in step.requirements:
            if requirement.conda and requirement.name in (
                "cuda-nvcc",
                "cuda-toolkit",
                "cuda-version",
                "cuda",
                "cuda-compiler",
            ):
                release = release or _label_release(step) or ".".join(str(n) for n in numbers(requirement.version)[:2])
    row = toolkit(release) if release else None
    if row is None or row.max_gcc is None:
        return
    for step in steps:
        for requirement in step.requirements:
            version = _gcc_version(requirement)
            if not requirement.conda and not _made_default(steps, version):
                continue
            if version and version > row.max_gcc and not _other_compiler(steps, row.max_gcc):
                yield Hit(
                    "host-compiler-too-new",
                    requirement.line,
                    (requirement.raw,),
                    {
                        "gcc": str(version),
                        "max": str(row.max_gcc),
                        "cuda": release,
                        "row_source": row.source,
                    },
                )
                return
    system = distro(base.distro) if base and base.distro else None
    uses_conda = any(
        r.conda and r.name.startswith(("gcc", "gxx", "cxx-compiler")) for s in steps for r in s.requirements
    )
    if system is None or system.gcc <= row.max_gcc or uses_conda or _other_compiler(steps, row.max_gcc):
        return
    if base is not None and any(builds_extension(steps, step) for step in steps):
        values = {"gcc": str(system.gcc), "max": str(row.max_gcc), "cuda": release, "row_source": row.source}
        yield Hit("host-compiler-too-new", base.line, (base.text,), values)


def _made_default(steps: list[Step], version: int) -> bool:
    """Whether something makes apt's gcc-N the compiler: alternatives, a link, CC or CXX."""
    pattern = rf"(update-alternatives|ln -s|CC=|CXX=|CUDAHOSTCXX=|-ccbin)[^\n]*(gcc|g\+\+)-{version}\b"
    for step in steps:
        if re.search(pattern, step.text) or any(
            step.env.get(name, "").endswith(f"-{version}") for name in ("CC", "CXX", "CUDAHOSTCXX")
        ):
            return True
    return False


def _label_release(step: Step) -> str:
    for channel in step.channels:
        match = re.search(r"label/cuda-(\d+\.\d+)", channel)
        if match:
            return match.group(1)
    return ""


def _gcc_version(requirement: Requirement) -> int:
    if requirement.conda and re.fullmatch(r"(gcc|gxx)(-linux-64|-impl-linux-64)?", requirement.name):
        found = numbers(requirement.version)
        if not found:
            lower = [
                numbers(s.version)[0] for s in requirement.bounds if s.operator in (">=", ">") and numbers(s.version)
            ]
            return lower[0] if lower else 0
        return found[0]
    match = re.fullmatch(r"(?:gcc|g\+\+)-(\d+)", requirement.name)
    return int(match.group(1)) if match and not requirement.conda else 0


def _other_compiler(steps: list[Step], most: int) -> bool:
    """Whether an allowed compiler is installed or named beside it."""
    for step in steps:
        for requirement in step.requirements:
            version = _gcc_version(requirement)
            if 0 < version <= most:
                return True
        joined = " ".join(
            [step.text, *(step.env.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "CUDAHOSTCXX", "CC"))]
        )
        for match in re.finditer(r"(?:g\+\+|gcc)-(\d+)", joined):
            if int(match.group(1)) <= most:
                return True
    return False
