"""Locking somebody's environment file: first whether it can be locked at all, then by conda-lock, then what came of it.

Two things go wrong silently with CUDA packages: the virtual packages of the host that locks leak into the solve, and
the solver takes a CPU build because some other package exists for nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from envbuilder.errors import InputError, Place
from envbuilder.files import write_text
from envbuilder.lock.conda import CondaOptions, solve_conda
from envbuilder.lock.conda_file import parse_conda_lock
from envbuilder.lock.conda_inputs import CondaInputs
from envbuilder.lock.environment_file import VIRTUAL, Environment, Requirement
from envbuilder.lock.model import CondaArtifact
from envbuilder.report.model import Confidence, Finding, Report, Severity, Verdict
from envbuilder.report.progress import Progress
from envbuilder.stack.fields import Strict, load_model

_DATA = Path(__file__).with_name("conda_variants.toml")
_NEEDED = ("__cuda", "__glibc")


class _Cuda(Strict):
    packages: tuple[str, ...]
    source: str


class Framework(Strict):
    """A framework with CUDA and CPU builds under one name; see ``conda_variants.toml``."""

    name: str
    cuda_build: str
    forced_by: tuple[str, ...]
    cpu_by: tuple[str, ...]
    cpu_only: tuple[str, ...]
    example: str
    source: str


class _Variants(Strict):
    cuda: _Cuda
    framework: tuple[Framework, ...]


@cache
def variants() -> _Variants:
    """What is known of packages whose variant is chosen silently."""
    return load_model(_Variants, _DATA)


def lock_environment(environment: Environment, options: CondaOptions, progress: Progress) -> tuple[Report, Path | None]:
    """Lock an environment file for linux-64, or say why its lock could not be trusted; the lock file when written.

    Raises InputError when its requirements contradict one another, SourceError when a channel does not answer.
    """
    found = tuple(check_environment(environment))
    if found:
        return _report(environment, found), None
    name = environment.path.name.removesuffix(".yml").removesuffix(".yaml").removesuffix(".environment")
    inputs = CondaInputs(
        name=name,
        channels=environment.channels or ("conda-forge",),
        requirements=tuple(requirement.text for requirement in environment.requirements),
        virtual_packages=environment.virtual or {"__glibc": "2.28"},
        place=Place(str(environment.path)),
    )

    def solve(requirements: tuple[Requirement, ...]) -> tuple[str, tuple[CondaArtifact, ...]]:
        asked = replace(inputs, requirements=tuple(requirement.text for requirement in requirements))
        text = solve_conda(asked, None, options, progress)
        return text, parse_conda_lock(text, inputs.lock_name)

    text, packages = solve(environment.requirements)
    found = tuple(_cpu_builds(environment, packages, lambda some: solve(some)[1]))
    if found:
        return _report(environment, found), None
    target = environment.path.with_name(inputs.lock_name)
    write_text(target, text)
    return _report(environment, (), f"{len(packages)} packages locked in {target}"), target


def check_environment(environment: Environment) -> Iterator[Finding]:
    """What makes a lock of this file depend on the host, or on chance. Read from the file alone."""
    yield from _virtual_packages(environment)
    for framework in variants().framework:
        yield from _unforced(environment, framework)


def _virtual_packages(environment: Environment) -> Iterator[Finding]:
    patterns = variants().cuda.packages
    concerned = [r for r in environment.requirements if any(fnmatchcase(r.name, pattern) for pattern in patterns)]
    missing = [name for name in _NEEDED if name not in (environment.virtual or {})]
    if not concerned or not missing:
        return
    names = ", ".join(dict.fromkeys(requirement.name for requirement in concerned))
    where = f"{VIRTUAL} beside it does not give them" if environment.virtual else f"there is no {VIRTUAL} beside it"
    yield Finding(
        rule="lock-virtual-packages",
        severity=Severity.ERROR,
        title=f"the virtual packages {' and '.join(missing)} are not fixed: the lock would depend on the host",
        place=Place(str(environment.path), concerned[0].line),
        cause=f"The solver chooses {names} by the virtual packages of the machine it runs on, and {where}. "
        "The same file locks on a GPU host and fails, or takes CPU builds, on a laptop or a CI runner.",
        cure=f"Put a {VIRTUAL} beside the file with those of the target, for example "
        '{subdirs: {linux-64: {packages: {__cuda: "11.8", __glibc: "2.35", __linux: "5.10", __unix: "0"}}}}.',
        evidence=tuple(requirement.text for requirement in concerned),
        sources=(variants().cuda.source,),
    )


def _unforced(environment: Environment, framework: Framework) -> Iterator[Finding]:
    by_name = {requirement.name: requirement for requirement in environment.requirements}
    cpu = next((by_name[name] for name in framework.cpu_by if name in by_name), None)
    asked = by_name.get(framework.name)
    if cpu is not None:
        yield Finding(
            rule="lock-cpu-variant",
            severity=Severity.ERROR,
            title=f"{cpu.name} asks for the CPU build of {framework.name}",
            place=Place(str(environment.path), cpu.line),
            cause="Nothing in that build computes on a GPU.",
            cure=f"Remove {cpu.name}, and ask for the CUDA build: {framework.example}.",
            evidence=(cpu.text,),
            sources=(framework.source,),
        )
        return
    if asked is None or _forced(framework, by_name):
        return
    risks = [by_name[name] for name in framework.cpu_only if name in by_name]
    named = ", ".join(requirement.name for requirement in risks)
    yield Finding(
        rule="lock-cpu-variant",
        severity=Severity.ERROR,
        title=f"nothing forces the CUDA build of {framework.name}: the solver may take the CPU build and say nothing"
        + (f"; {named} has been built against the CPU build alone" if risks else ""),
        place=Place(str(environment.path), asked.line),
        cause=f"CPU and CUDA builds of {framework.name} bear one name and version. One requirement that fits only the "
        "CPU build decides for all; asking for a CUDA toolkit beside it does not prevent that.",
        cure=f"Ask for the build itself: {framework.example}."
        + (f" If that cannot be solved, leave {named} out, or install it with pip." if risks else ""),
        evidence=tuple(requirement.text for requirement in (asked, *risks)),
        sources=(framework.source,),
    )


def _forced(framework: Framework, by_name: Mapping[str, Requirement]) -> bool:
    """Whether a build string, or a package that stands for the CUDA build, decides."""
    builds = [by_name[name].build for name in (framework.name, f"{framework.name}-mutex") if name in by_name]
    return any(framework.cuda_build in build for build in builds) or any(n in by_name for n in framework.forced_by)


def _cpu_builds(
    environment: Environment,
    packages: tuple[CondaArtifact, ...],
    solve: Callable[[tuple[Requirement, ...]], tuple[CondaArtifact, ...]],
) -> Iterator[Finding]:
    """CPU builds in what was solved, each with the requirement that forced it: found by leaving out one at a time."""
    for framework in variants().framework:
        if not _is_cpu(packages, framework):
            continue
        culprits = []
        for requirement in environment.requirements:
            if requirement.name == framework.name:
                continue
            rest = tuple(other for other in environment.requirements if other is not requirement)
            try:
                solved = solve(rest)
            except InputError:
                continue
            if not _is_cpu(solved, framework) and any(p.name == framework.name for p in solved):
                culprits.append(requirement)
        named = ", ".join(requirement.name for requirement in culprits)
        yield Finding(
            rule="lock-cpu-variant",
            severity=Severity.ERROR,
            title=f"the solver takes the CPU build of {framework.name}" + (f" because of {named}" if culprits else ""),
            place=Place(str(environment.path), culprits[0].line if culprits else None),
            cause=f"Without {named} it takes the CUDA build." if culprits else "No single requirement forces it.",
            cure=(f"Leave {named} out, or install it with pip. " if culprits else "")
            + f"Ask for the build itself: {framework.example}.",
            confidence=Confidence.MEASURED,
            evidence=tuple(requirement.text for requirement in culprits),
        )


def _is_cpu(packages: tuple[CondaArtifact, ...], framework: Framework) -> bool:
    builds = [package.build for package in packages if package.name == framework.name]
    return any(re.search(r"(^|_)cpu", build) for build in builds)


def _report(environment: Environment, findings: tuple[Finding, ...], summary: str | None = None) -> Report:
    return Report(
        command="lock",
        subject=str(environment.path),
        verdict=Verdict.NO if findings else Verdict.YES,
        summary=summary or f"{environment.path.name} was not locked: its lock could not be trusted",
        findings=findings,
    )
