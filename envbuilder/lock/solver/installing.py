"""Installing an explicit lock, and reading back what a prefix holds."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.lock.solver.channels import mirrored_urls, mirrors_from_environment
from envbuilder.lock.solver.downloading import bring

if TYPE_CHECKING:
    from rattler import RepoDataRecord


_DIGEST = re.compile(r"^(?:md5:[0-9a-f]{32}|sha256:[0-9a-f]{64})$")


class ExplicitFileError(Exception):
    """A line of an explicit lock is not an address with a digest."""


def split_filename(filename: str) -> tuple[str, str, str]:
    """Name, version and build of ``name-version-build.conda`` (or ``.tar.bz2``); ValueError for anything else."""
    for suffix in (".conda", ".tar.bz2"):
        if filename.endswith(suffix):
            name, version, build = filename.removesuffix(suffix).rsplit("-", 2)
            return name, version, build
    raise ValueError(f"{filename} is neither a .conda nor a .tar.bz2")


def explicit_packages(path: Path) -> list[tuple[str, str]]:
    """Address and digest (``md5:`` or ``sha256:``, hex) of each line of an explicit lock.

    Raises ExplicitFileError for a line without a digest, or whose file is no conda package.
    """
    packages = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith(("#", "@")):
            continue
        url, _, digest = text.partition("#")
        digest = digest if ":" in digest else f"md5:{digest}"
        try:
            split_filename(url.rpartition("/")[2])
        except ValueError as error:
            raise ExplicitFileError(f"{path}:{number}: {error}") from None
        if not _DIGEST.match(digest):
            raise ExplicitFileError(f"{path}:{number}: no digest stands behind {url.rpartition('/')[2]}")
        packages.append((url, digest))
    return packages


def record_of(url: str, digest: str) -> RepoDataRecord:
    """A record for the file at ``url``; ``digest`` is ``md5:`` or ``sha256:`` and hex."""
    from rattler import PackageRecord, RepoDataRecord
    from rattler.package import BuildString

    rest, _, filename = url.rpartition("/")
    channel, _, subdir = rest.rpartition("/")
    name, version, build = split_filename(filename)
    algorithm, _, value = digest.partition(":")
    digests = {algorithm: bytes.fromhex(value)}
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
    """Install an explicit lock into ``prefix``, every package held against its digest first; how many there are.

    Raises ExplicitFileError, what ``bring`` raises, and what py-rattler raises.
    """
    import rattler

    mirrors = mirrors_from_environment()
    packages = explicit_packages(file)
    with tempfile.TemporaryDirectory(prefix="envbuilder-packages-") as folder:
        paths = bring([(mirrored_urls(url, mirrors), digest) for url, digest in packages], Path(folder))
        records = [record_of(url, digest) for url, digest in packages]
        for record, path in zip(records, paths, strict=True):
            record.url = path.as_uri()
        cache = os.environ.get("CONDA_PKGS_DIRS")
        await rattler.install(
            records=records,
            target_prefix=prefix,
            cache_dir=Path(cache.split(os.pathsep)[0]) if cache else None,
            platform=rattler.Subdir(os.environ.get("CONDA_SUBDIR") or "linux-64"),
            execute_link_scripts=False,
            show_progress=False,
        )
    _say_where_from(prefix, {url.rpartition("/")[2]: url for url, _ in packages})
    return len(records)


def _say_where_from(prefix: Path, urls: dict[str, str]) -> None:
    """Put the lock's own addresses (by file name) into ``conda-meta`` in the place of this run's temporary ones."""
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        entry = json.loads(path.read_text(encoding="utf-8"))
        if entry.get("fn") in urls:
            entry["url"] = urls[entry["fn"]]
            path.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")


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
