"""From nothing to a verified image: which stack, and what the CPU can show of its image."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import EnvbuilderError, HostError, SourceError
from envbuilder.fetch.cache import is_there
from envbuilder.fetch.fetching import item_of
from envbuilder.files import write_text
from envbuilder.image.building import current_image
from envbuilder.image.choose import choose_engine
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.image.host_tools import ensure_programs
from envbuilder.image.names import image_tag
from envbuilder.image.proving import Wanted, from_dict, prove
from envbuilder.image.record import build_folder
from envbuilder.lock.reading import load_lock
from envbuilder.report.model import Report, Status
from envbuilder.report.present import as_json
from envbuilder.report.progress import Progress
from envbuilder.smoke.manifest import Manifest
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.loading import load_stack
from envbuilder.stack.manifest import image_manifest
from envbuilder.stack.model import Stack

# In the order of preference.
STACKS = ("p40", "p40-debian")


@dataclass(frozen=True)
class Choice:
    """The stack to build, and why that one, in a sentence."""

    stack: str
    why: str


def choose_stack(name: str | None, engine_name: str, progress: Progress) -> Choice:
    """The stack ``name``, or the first of STACKS whose sources all answer; one whose image is current needs none.

    Raises SourceError naming the source that does not answer, within half a minute.
    """
    names = (name,) if name else STACKS
    for candidate in names:
        if _image_is_current(candidate, engine_name):
            return Choice(candidate, "its image is here, made of exactly this lock.")
    for candidate in names:
        if _all_fetched(candidate):
            return Choice(candidate, "every file of its lock is in the cache.")
    # Imported late: it asks the network, and the second run has no need of it.
    from envbuilder.fetch.sources import first_reachable

    progress.stage("ask the sources")
    found, why = first_reachable(names)
    if found is None:
        raise SourceError(
            f"a source of {' or '.join(names)} does not answer" if name else "no stack can be built from here",
            detail=why,
            cure=f"`envbuilder sources {names[-1]}` shows all of them; docs/mirrors.md says how to set a mirror.",
        )
    return Choice(found, why)


def ready_engine(name: str, progress: Progress) -> Engine:
    """The engine, with what it needs installed where we may: buildah and mmdebstrap, or mmdebstrap beside Docker."""
    try:
        engine = choose_engine(name)
    except HostError:
        if name == "docker":
            raise
        ensure_programs(progress)
        return choose_engine(name)
    ensure_programs(progress, ("mmdebstrap",) if engine.name == "docker" else ("buildah", "runc", "mmdebstrap"))
    return engine


def _image_is_current(name: str, engine_name: str) -> bool:
    try:
        stack, gpu = load_stack(name)
        return current_image(stack, gpu, load_lock(stack), choose_engine(engine_name))
    except HostError:
        return False


def _all_fetched(name: str) -> bool:
    stack, _ = load_stack(name)
    if stack.debian is None:
        # The steps of its Dockerfile fetch for themselves.
        return False
    lock = load_lock(stack)
    items = [item_of(artifact) for artifact in lock.python]
    items += [item_of(deb) for deb in lock.debs if deb.target == "runtime"]
    return all(is_there(item) for item in items)


def report_path(stack: str) -> Path:
    """Where the report of the CPU's part of the suite is kept."""
    return build_folder() / f"{stack}-verify-cpu.json"


def verify_on_cpu(
    stack: Stack, gpu: GpuProfile, image: ImageInfo, engine: Engine, progress: Progress
) -> tuple[Report, bool]:
    """What a CPU can show of the image, and whether that was run now: a kept report of the same image stands."""
    path = report_path(stack.name)
    kept = _kept(path, engine.identity(image, progress))
    if kept:
        return kept, False
    progress.stage("verify on the CPU")
    data = image_manifest(stack, gpu, lock_digest="")
    manifest = Manifest(data["stack"], data["gpu"], data["lock"], data["builds"])
    report = prove(Wanted(image_tag(stack.name), None), engine, manifest, progress, None)
    write_text(path, as_json(report))
    return report, True


def _kept(path: Path, identity: str) -> Report | None:
    try:
        report = from_dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, EnvbuilderError):
        return None
    same = report.facts.get("passport", {}).get("image id") == identity
    return report if same and not failures(report) else None


def failures(report: Report) -> list[str]:
    """The titles of the checks that failed."""
    return [check.title for check in report.checks if check.status is Status.FAILED]
