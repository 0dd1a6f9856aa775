"""Does a lock still fit its stack? Answered from the files alone, without the network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from envbuilder.errors import InputError, Place
from envbuilder.lock.conda_cuda import check_release
from envbuilder.lock.conda_inputs import stack_inputs
from envbuilder.lock.images import wanted_images
from envbuilder.lock.model import Lock
from envbuilder.lock.python import missing_groups
from envbuilder.lock.reading import REQUIREMENTS, SOURCES, load_lock, lock_folder
from envbuilder.lock.requirements_file import about
from envbuilder.report.model import Confidence, Finding, Report, Severity, Verdict
from envbuilder.stack.model import Stack


def check_lock(stack: Stack) -> Report:
    """Hold the stack's lock against the stack. The verdict is NO when a fresh lock would have to differ.

    Raises InputError when there is no lock and IntegrityError when one was edited by hand.
    """
    lock = load_lock(stack)
    folder = lock_folder(stack.name)
    assert folder is not None
    findings = [*_python(stack, lock, folder), *_conda(stack, lock, folder), *_sources(stack, lock, folder)]
    advice = [
        _finding("lock-group-missing", text, _place(folder, stack, REQUIREMENTS), Severity.ADVICE)
        for text in missing_groups(stack, lock.python)
    ]
    fits = not findings
    summary = (
        f"the lock of {stack.name} fits its stack"
        if fits
        else (
            f"the lock of {stack.name} does not fit its stack in {len(findings)} "
            f"point{'s' if len(findings) > 1 else ''}: envbuilder lock {stack.name}"
        )
    )
    return Report(
        command="lock --check",
        subject=stack.name,
        verdict=Verdict.YES if fits else Verdict.NO,
        summary=summary,
        findings=(*findings, *advice),
        facts={"digest": lock.digest},
    )


def _python(stack: Stack, lock: Lock, folder: Path) -> Iterator[Finding]:
    place = _place(folder, stack, REQUIREMENTS)
    text = (folder / f"{stack.name}{REQUIREMENTS}").read_text(encoding="utf-8")
    if about(stack) not in text.splitlines():
        yield _finding(
            "lock-target",
            f"the lock was not made for Python {stack.python.version} and the cut-off "
            f"{stack.python.cutoff} of the stack",
            place,
        )
    held = {artifact.name: artifact for artifact in lock.python}
    groups = {artifact.group for artifact in lock.python}
    for name, pin in stack.python.packages.items():
        if pin.group and pin.group not in groups:
            continue
        artifact = held.get(name)
        if artifact is None:
            yield _finding("lock-pin-missing", f"{name} {pin.version} is pinned and not in the lock", place)
        elif artifact.version != pin.version:
            yield _finding(
                "lock-pin-moved", f"{name} is pinned to {pin.version}, the lock has {artifact.version}", place
            )
        elif artifact.index != pin.index:
            yield _finding(
                "lock-index-moved",
                f"{name} is to come from {pin.index or 'the default index'}, the lock has it from "
                f"{artifact.index or 'the default index'}",
                place,
            )


def _conda(stack: Stack, lock: Lock, folder: Path) -> Iterator[Finding]:
    inputs = stack_inputs(stack, f"stacks/{stack.name}.toml")
    if inputs is None:
        return
    place = Place(str(folder / inputs.lock_name))
    if not lock.conda:
        yield _finding("lock-conda-missing", "the conda half is not locked", place)
        return
    for filename, text in (
        (inputs.environment_name, inputs.environment_text()),
        (inputs.virtual_name, inputs.virtual_text()),
    ):
        path = folder / filename
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            yield _finding(
                "lock-conda-inputs", "channels, requirements or virtual packages are not the stack's", Place(str(path))
            )
    held = {package.name: package for package in lock.conda}
    assert stack.conda is not None
    for name, pin in stack.conda.packages.items():
        version = held[name].version if name in held else "none"
        if version != pin.version:
            yield _finding("lock-pin-moved", f"{name} is pinned to {pin.version}, the lock has {version}", place)
    try:
        check_release(lock.conda, stack.cuda.toolkit, place)
    except InputError as error:
        yield _finding("lock-cuda-mixed", error.message, place)


def _sources(stack: Stack, lock: Lock, folder: Path) -> Iterator[Finding]:
    place = _place(folder, stack, SOURCES)
    wanted = {name: (part.repository, part.tag, part.commit) for name, part in stack.sources.items()}
    held = {git.name: (git.repository, git.tag, git.commit) for git in lock.git}
    for name in sorted(wanted.keys() | held.keys()):
        if wanted.get(name) != held.get(name):
            yield _finding("lock-source-moved", f"the source of {name} is not the stack's", place)
    if {image.target: image.reference for image in lock.images} != wanted_images(stack):
        yield _finding("lock-image-moved", "the base images are not the stack's", place)
    if stack.debian is None:
        return
    if lock.debian is None or lock.debian.suite != stack.debian.suite:
        yield _finding("lock-debian-moved", f"the base is not Debian {stack.debian.suite}", place)
        return
    names = {deb.name for deb in lock.debs}
    for name in (*stack.debian.packages, *stack.debian.devel):
        if name not in names:
            yield _finding("lock-pin-missing", f"the Debian package {name} is asked for and not in the lock", place)


def _place(folder: Path, stack: Stack, suffix: str) -> Place:
    return Place(str(folder / f"{stack.name}{suffix}"))


def _finding(rule: str, title: str, place: Place, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(rule=rule, severity=severity, title=title, place=place, confidence=Confidence.MEASURED)
