"""Rebuild an image from the lock it records and say whether it is the same: by digest, else file by file."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder import __version__, data
from envbuilder.audit.image import is_archive, is_layout, open_image
from envbuilder.errors import HostError, InputError, Place
from envbuilder.image.arranged import published_config
from envbuilder.image.building import INPUTS_LABEL, inputs_digest, rebuild
from envbuilder.image.choose import choose_engine
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.image.names import REBUILT
from envbuilder.image.scratch import scratch
from envbuilder.image.uv_version import uv_version
from envbuilder.publish.differing import Difference, file_differences, setting_differences
from envbuilder.publish.filetable import FileTable
from envbuilder.publish.layer_bytes import chunks_of
from envbuilder.publish.recorded import Recorded, find_recipe, read_recorded
from envbuilder.report.model import Confidence, Finding, Report, Severity, Table, Verdict
from envbuilder.report.progress import Progress

DIGEST_EQUAL, CONTENT_EQUAL, DIFFERENT = "digest-equal", "content-equal", "different"
# Of each kind of difference: how many are shown, and how many stand in the JSON.
_SHOWN, _LISTED = 8, 1000


@dataclass
class Image:
    """An image to compare. ``engine`` is None for an archive or a layout, ``info`` what the engine says of it."""

    reference: str
    engine: Engine | None
    info: ImageInfo | None
    config: dict[str, Any] = field(default_factory=dict)
    digest: str = ""

    @property
    def path(self) -> Path:
        """The archive or layout."""
        return Path(self.reference)

    def take_config(self, body: bytes) -> None:
        """Keep the configuration and its digest, which is the image's: it names every layer by its hash.

        What only the store that built it knows is left out, as it is when envbuilder saves or pushes an image.
        """
        try:
            self.config = json.loads(body)
            diff_ids = self.config["rootfs"]["diff_ids"]
            diff_ids[0].partition(":")
            body = published_config(body, diff_ids)
            self.digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            self.config = json.loads(body)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(
                f"the configuration of this image is damaged: {error}",
                place=Place(self.reference),
                cure="Save or pull the image again.",
            ) from error

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        if self.info is not None:
            return self.info.labels
        return (self.config.get("config") or {}).get("Labels") or {}


def reproduce(reference: str, engine: str, bundle: Path | None, progress: Progress) -> Report:
    """Rebuild the image ``reference`` out of its lock, without any layer that is there, and compare.

    Raises InputError for no image or none of envbuilder's, NotEnoughError when its lock is not here, else as building
    does. The rebuilt image is gone afterwards.
    """
    first = find_image(reference, engine)
    builder = first.engine or choose_engine(engine)
    recorded = read_recorded(reference, builder.name if first.engine else "", first.labels, progress)
    recipe, project = find_recipe(recorded, bundle, progress)
    with scratch() as folder, data.reading_from(project) if project else contextlib.nullcontext():
        same_inputs = inputs_digest(recipe) == first.labels.get(INPUTS_LABEL)
        tag = f"{REBUILT}:{folder.name}"
        try:
            info = rebuild(recipe, tag, builder, progress)
            second = Image(f"rebuilt by {builder.version()}", builder, info)
            return _report(first, second, folder, progress, recorded, same_inputs)
        finally:
            builder.remove(tag)


def compare(reference: str, other: str, engine: str, progress: Progress) -> Report:
    """Compare two images that are there. Raises InputError when one is not."""
    with scratch() as folder:
        return _report(find_image(reference, engine), find_image(other, engine), folder, progress)


def find_image(reference: str, engine: str) -> Image:
    """The image ``reference``: an OCI layout, an archive, or an image in the store of ``engine`` ("auto": of any)."""
    path = Path(reference)
    if (path.is_dir() and is_layout(path)) or (path.is_file() and is_archive(path)):
        found = Image(reference, None, None)
        with open_image(path) as (config, _):
            found.take_config(config)
        return found
    if path.exists():
        raise InputError(
            "this is no image archive and no OCI layout",
            place=Place(reference),
            cure="Give what `envbuilder save`, `docker save` or `buildah push IMAGE oci-archive:FILE` writes.",
        )
    here = []
    for name in ("docker", "buildah") if engine == "auto" else (engine,):
        try:
            candidate = choose_engine(name)
        except HostError:
            if engine != "auto":
                raise
            continue
        here.append(candidate.name)
        info = None if reference.startswith("-") else candidate.image(reference)
        if info is not None:
            return Image(reference, candidate, info)
    raise InputError(
        f"there is no image {reference} ({' or '.join(here) or 'no engine'} looked at), and no file of that name",
        cure="Build it (envbuilder build STACK), or get it first: envbuilder pull REF@sha256:...",
    )


def _report(
    first: Image,
    second: Image,
    folder: Path,
    progress: Progress,
    recorded: Recorded | None = None,
    same_inputs: bool = True,
) -> Report:
    facts: dict[str, Any] = {"first": {"reference": first.reference}, "second": {"reference": second.reference}}
    if recorded:
        facts["made of"] = {
            "stack": recorded.stack,
            "lock": recorded.lock,
            "envbuilder": recorded.envbuilder,
            "uv": recorded.uv,
            "same inputs": same_inputs,
        }
        facts["here"] = {"envbuilder": __version__, "uv": uv_version()}
    if first.engine and first.info and second.info and first.engine is second.engine:
        # A hash over the configuration, which holds the hash of each layer: the engine made them of the bytes.
        identities = {first.engine.identity(info, progress) for info in (first.info, second.info)}
        if len(identities) == 1:
            return _told(first.reference, DIGEST_EQUAL, identities.pop(), [], facts)
    table = FileTable(folder / "files.sqlite")
    try:
        for image in (first, second):
            _read(image, table, progress)
        if first.digest == second.digest:
            return _told(first.reference, DIGEST_EQUAL, first.digest, [], facts)
        progress.stage("compare")
        for name, image in (("this", first), ("other", second)):
            table.stack(name, image.config["rootfs"]["diff_ids"])
            side = facts["first" if image is first else "second"]
            side |= {"digest": image.digest, "files": table.count(name)}
        groups: dict[str, list[Difference]] = defaultdict(list)
        counts: dict[str, int] = defaultdict(int)
        differences = _chain(setting_differences(first.config, second.config), file_differences(table, "this", "other"))
        for difference in differences:
            counts[difference.cause.id] += 1
            if len(groups[difference.cause.id]) < _LISTED:
                groups[difference.cause.id].append(difference)
    finally:
        table.close()
    harmless = all(group[0].cause.harmless for group in groups.values())
    facts["differences"] = {
        cause: {"count": counts[cause], "listed": [_row(difference) for difference in group]}
        for cause, group in groups.items()
    }
    findings = [_finding(group, counts[cause]) for cause, group in groups.items()]
    return _told(first.reference, CONTENT_EQUAL if harmless else DIFFERENT, "", findings, facts)


def _chain(*parts: Iterable[Difference]) -> Iterator[Difference]:
    for part in parts:
        yield from part


def _read(image: Image, table: FileTable, progress: Progress) -> None:
    progress.stage(f"read {image.reference}")
    if image.engine is None or image.info is None:
        with open_image(image.path) as (body, layers):
            image.take_config(body)
            for diff_id, stream in zip(image.config["rootfs"]["diff_ids"], layers, strict=False):
                progress.item(diff_id)
                # An archive is read whole: only so is it known that its layers are those of its configuration.
                table.add_layer(diff_id, chunks_of(stream, image.reference), image.reference)
    else:
        contents = image.engine.contents(image.info)
        for known, chunks in contents.layers(lambda diff_id: not table.holds(diff_id)):
            progress.item(known or "a layer")
            table.add_layer(known, chunks, image.reference)
        image.take_config(contents.config())
    missing = [diff_id for diff_id in image.config["rootfs"]["diff_ids"] if not table.holds(diff_id)]
    if missing:
        raise InputError(
            f"this image lacks the layer {missing[0]}", place=Place(image.reference), cure="Save or pull it again."
        )


def _row(difference: Difference) -> dict[str, str]:
    return {
        "place": difference.place,
        "aspect": difference.aspect,
        "first": difference.first,
        "second": difference.second,
    }


def _finding(group: list[Difference], count: int) -> Finding:
    cause = group[0].cause
    shown = [f"{d.place}: {d.aspect} {_short(d.first)} -> {_short(d.second)}" for d in group[:_SHOWN]]
    if count > _SHOWN:
        shown.append(f"and {count - _SHOWN} more" + (" (--json lists them)" if count <= _LISTED else ""))
    return Finding(
        rule=cause.id,
        severity=Severity.ADVICE if cause.harmless else Severity.ERROR,
        title=f"{cause.title} ({count})",
        cause=cause.why,
        cure=cause.cure,
        evidence=tuple(shown),
        sources=(cause.source,) if cause.source else (),
        confidence=Confidence.INFERRED,
    )


def _short(value: str) -> str:
    text = value.replace("\n", " ") or "none"
    return text if len(text) <= 100 else f"{text[:99]}…"


def _told(subject: str, level: str, digest: str, findings: list[Finding], facts: dict[str, Any]) -> Report:
    facts["level"] = level
    if digest:
        facts["digest"] = digest
    summary = {
        DIGEST_EQUAL: f"digest-equal: every byte is the same, {digest}",
        CONTENT_EQUAL: "content-equal: every file by path, kind, mode, owner and hash, and every setting; the digest "
        "differs for the reasons above",
        DIFFERENT: "different: the images do not hold the same",
    }[level]
    rows = tuple(
        (name, str(facts["made of"][key]), str(facts["here"].get(key, "")))
        for name, key in (("stack", "stack"), ("lock", "lock"), ("envbuilder", "envbuilder"), ("uv", "uv"))
        if "made of" in facts
    )
    tables = (Table("", ("made of", "the image", "here"), rows),) if rows else ()
    verdict = Verdict.NO if level == DIFFERENT else Verdict.YES
    ordered = sorted(findings, key=lambda finding: finding.severity is Severity.ADVICE)
    return Report("reproduce", subject, verdict, summary, tuple(ordered), facts=facts, tables=tables)
