"""Installing an explicit lock, and reading back what a prefix holds."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.lock.solver.channels import mirrored_urls, mirrors_from_environment

if TYPE_CHECKING:
    from rattler import RepoDataRecord


class ExplicitFileError(Exception):
    """A line of an explicit lock is not an address with a digest."""


def split_filename(filename: str) -> tuple[str, str, str]:
    """Name, version and build of ``name-version-build.conda`` (or ``.tar.bz2``); ValueError for anything else."""
    for suffix in (".conda", ".tar.bz2"):
        if filename.endswith(suffix):
            name, version, build = filename.removesuffix(suffix).rsplit("-", 2)
            return name, version, build
    raise ValueError(f"{filename} is neither a .conda nor a .tar.bz2")


def explicit_records(path: Path) -> list[RepoDataRecord]:
    """The records of an explicit lock: one ``address#digest`` a line. A line without a digest is refused."""
    records = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith(("#", "@")):
            continue
        url, _, digest = text.partition("#")
        try:
            records.append(record_of(url, digest))
        except ValueError as error:
            raise ExplicitFileError(f"{path}:{number}: {error}") from None
    return records


def record_of(url: str, digest: str) -> RepoDataRecord:
    """A record for the file at ``url``; ``digest`` is an MD5 or ``sha256:`` and a SHA-256, in hex."""
    from rattler import PackageRecord, RepoDataRecord
    from rattler.package import BuildString

    rest, _, filename = url.rpartition("/")
    channel, _, subdir = rest.rpartition("/")
    name, version, build = split_filename(filename)
    if digest.startswith("sha256:"):
        digests = {"sha256": bytes.fromhex(digest.removeprefix("sha256:"))}
    elif digest:
        digests = {"md5": bytes.fromhex(digest)}
    else:
        raise ValueError(f"no digest stands behind {filename}")
    tail = build.rsplit("_", 1)[-1]
    record = PackageRecord(
        name=name,
        version=version,
        build=BuildString(build),
        build_number=int(tail) if tail.isdigit() else 0,
        subdir=subdir,
        arch=None,
        platform=None,
        **digests,
    )
    return RepoDataRecord(record, filename, url, channel)


async def install(file: Path, prefix: Path) -> int:
    """Install an explicit lock into ``prefix``; the number of packages. Raises what py-rattler raises."""
    import rattler

    mirrors = mirrors_from_environment()
    records = explicit_records(file)
    for record in records:
        record.url = mirrored_urls(record.url, mirrors)[0]
    cache = os.environ.get("CONDA_PKGS_DIRS")
    await rattler.install(
        records=records,
        target_prefix=prefix,
        cache_dir=Path(cache.split(os.pathsep)[0]) if cache else None,
        platform=rattler.Subdir(os.environ.get("CONDA_SUBDIR") or "linux-64"),
        execute_link_scripts=False,
        show_progress=False,
    )
    return len(records)


def installed(prefix: Path) -> list[dict[str, Any]]:
    """What ``conda-meta`` of a prefix says is installed, as ``conda list --json`` gives it."""
    rows = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        channel = str(entry["channel"])
        rows.append(
            {
                "name": entry["name"],
                "version": entry["version"],
                "build_string": entry["build"],
                "build_number": entry.get("build_number", 0),
                "channel": channel,
                "base_url": channel.removesuffix(f"/{entry['subdir']}"),
                "dist_name": f"{entry['name']}-{entry['version']}-{entry['build']}",
                "platform": entry["subdir"],
            }
        )
    return rows
