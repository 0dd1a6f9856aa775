"""Proving an image on a card (or, as far as that goes, on a CPU): looks at the host, then runs the suite inside.

The host is asked first, through NVML, so that a host without a driver or with the wrong card costs no container.
What NVML says goes into the container as a file; the suite judges it together with what torch sees there.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import HostError, NotEnoughError
from envbuilder.image.engine import Engine, ImageInfo, Run, RunRequest
from envbuilder.report.model import Check, Report, Status, Verdict, check_from_dict
from envbuilder.report.progress import Progress
from envbuilder.smoke import registry
from envbuilder.smoke.check import Need, failed
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judged import JUDGED, Case
from envbuilder.smoke.manifest import Manifest
from envbuilder.smoke.replay import pick, to_check

_HOST_FILE = "/run/envbuilder/host.json"
# What a run cannot do without: judged before a container is started.
_BEFORE = ("gpu", "driver", "card")


@dataclass(frozen=True)
class Wanted:
    """What to prove. ``gpu`` is nvidia-smi's index, None for the CPU."""

    image: str
    gpu: int | None
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    trainer: bool = False
    soak: bool = False
    steps: int = 0

    def arguments(self) -> list[str]:
        """The suite's own arguments."""
        given = ["--device", "cpu"] if self.gpu is None else ["--device", "cuda", "--host", _HOST_FILE]
        for name in self.only:
            given += ["--only", name]
        for name in self.skip:
            given += ["--skip", name]
        given += ["--trainer"] if self.trainer else []
        given += ["--soak"] if self.soak else []
        return [*given, "--steps", str(self.steps)] if self.steps else given


def prove(wanted: Wanted, engine: Engine, manifest: Manifest, progress: Progress, facts: HostFacts | None) -> Report:
    """Run the suite in the image and return its report. ``facts``: what NVML said, None for a CPU run.

    Raises InputError for an index that is not there, HostError when the engine or the image is not there.
    """
    registry.select(wanted.only, wanted.skip)
    image = engine.image(wanted.image)
    if image is None:
        raise HostError(
            f"there is no image {wanted.image!r} in {engine.name}'s store",
            cure=f"Build it: envbuilder build {manifest.stack['name']}. Or name another with --image.",
        )
    card = None
    if facts is not None and wanted.gpu is not None:
        card = pick(facts, [wanted.gpu])[0]
        stopped = _before(wanted, facts, card, manifest)
        if stopped is not None:
            return stopped
    with tempfile.TemporaryDirectory() as folder:
        mounts = _mounts(Path(folder), facts, card)
        request = RunRequest(
            image=wanted.image,
            command=("python3", "-m", "envbuilder.smoke", *wanted.arguments()),
            gpu=(card.uuid or str(card.index)) if card else None,
            mounts=mounts,
            env={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        )
        try:
            run = engine.run(request)
        except HostError as error:
            if card is None:
                raise
            return _not_started(wanted, error, manifest)
        return _with_image(_follow(run, progress), image, engine.identity(image, progress))


def _mounts(folder: Path, facts: HostFacts | None, card: Card | None) -> dict[Path, str]:
    """The files that the container is given, readable by its user."""
    folder.chmod(0o755)
    # A container without network may have no hosts file, and Ray looks up `localhost`.
    texts = {"hosts": ("127.0.0.1 localhost\n", "/etc/hosts")}
    if facts is not None and card is not None:
        texts["host.json"] = (json.dumps(_for_card(facts, card)), _HOST_FILE)
    mounts = {}
    for name, (text, inside) in texts.items():
        path = folder / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o644)
        mounts[path] = inside
    return mounts


def _for_card(facts: HostFacts, card: Card) -> dict[str, Any]:
    """The facts as the container sees the host: the one card that it is given."""
    return {**facts.to_dict(), "gpus": [row for row in facts.to_dict().get("gpus", []) if row["index"] == card.index]}


def _before(wanted: Wanted, facts: HostFacts, card: Card, manifest: Manifest) -> Report | None:
    """The report when the host cannot run the image at all, None when it can."""
    case = Case(facts, card, manifest)
    judged = {j.id: to_check(j, j.judge(case)) for j in JUDGED if j.id in _BEFORE and (facts.cards or not j.needs_card)}
    broken = [check.id for check in judged.values() if check.status is Status.FAILED]
    if not broken:
        return None
    return _report_of(wanted, judged, f"not run: {', '.join(broken)} failed", card.label, facts)


def _not_started(wanted: Wanted, error: HostError, manifest: Manifest) -> Report:
    devices = next(j for j in JUDGED if j.id == "devices")
    check = to_check(devices, failed(error.message, error.cure or ""))
    return _report_of(
        wanted, {"devices": check}, "not run: the container did not start", str(manifest.stack["name"]), None
    )


def _report_of(wanted: Wanted, known: dict[str, Check], reason: str, subject: str, facts: HostFacts | None) -> Report:
    titles = {j.id: j for j in JUDGED}
    checks = []
    for spec in registry.select(wanted.only, wanted.skip):
        if (Need.TRAINER in spec.needs and not wanted.trainer) or (Need.SOAK in spec.needs and not wanted.soak):
            continue
        checks.append(known.get(spec.id) or Check(spec.id, spec.title, spec.proves, Status.NOT_PROVEN, message=reason))
    checks += [check for name, check in known.items() if name in titles and all(c.id != name for c in checks)]
    broken = [check for check in checks if check.status is Status.FAILED]
    summary = f"Failed: {', '.join(check.id for check in broken)}. The image was not started."
    return Report(
        "verify", subject, Verdict.NO, summary, checks=tuple(checks), facts={"host": facts.to_dict() if facts else {}}
    )


def _follow(run: Run, progress: Progress) -> Report:
    """Show events as they come; the last line is the report."""
    last: dict[str, Any] = {}
    try:
        for line in run:
            progress.log(line)
            try:
                event = json.loads(line)
            except json.JSONDecodeError:
                continue  # something else wrote to standard output
            last = event
            _show(event, progress)
        code = run.wait()
    except BaseException:
        run.stop()
        raise
    if last.get("command") != "verify":
        raise NotEnoughError(
            f"the suite ended without a report (exit code {code})",
            detail=run.errors(),
            cure="See the lines above; --only runs single checks.",
        )
    return from_dict(last)


def _show(event: dict[str, Any], progress: Progress) -> None:
    kind = event.get("event")
    if kind == "begin":
        progress.item(event["title"])
    elif kind == "step":
        progress.item(f"{event['id']}: step {event['step']}, {event['seconds']} s, {event['memory_mib']} MiB")


def from_dict(data: dict[str, Any]) -> Report:
    """A report of the suite out of its JSON."""
    return Report(
        data["command"], data["subject"], Verdict(data["verdict"]), data["summary"],
        checks=tuple(check_from_dict(check) for check in data["checks"]), facts=data["facts"],
    )  # fmt: skip


def _with_image(report: Report, image: ImageInfo, identity: str) -> Report:
    names = {"image": image.reference, "image digest": image.digest, "image id": identity}
    passport = {**report.facts.get("passport", {}), **names}
    return Report(
        report.command, f"{image.reference} on {passport.get('card') or 'the CPU'}", report.verdict, report.summary,
        report.findings, report.checks, {**report.facts, "passport": passport},
    )  # fmt: skip
