"""The Debian base of an image: mmdebstrap over a repository holding exactly the locked packages.

The same packages give the same bytes. The tar is kept in the cache under a digest of the packages and of the recipe
in this file, so that a second build, or another stack with the same base, takes it from there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock

from envbuilder.data import cache_root
from envbuilder.errors import HostError, IntegrityError
from envbuilder.fetch.fetching import Cached
from envbuilder.fetch.view import folder_of
from envbuilder.files import sha256_of, write_text
from envbuilder.image.failures import build_error
from envbuilder.image.host_tools import install_command
from envbuilder.image.process import Process
from envbuilder.image.scratch import scratch
from envbuilder.lock.model import DebArtifact
from envbuilder.report.progress import Progress

# Run in the new root ($1) when everything is installed. The user whom containers run as is made here and not in a step:
# useradd touches files without changing them, and whether those come into a step's layer is up to the engine's storage.
_USER = (
    'chroot "$1" useradd --uid 1000 --create-home --no-log-init --shell /bin/bash trainer',
    'rm -f "$1"/etc/.pwd.lock "$1"/etc/passwd- "$1"/etc/group- "$1"/etc/shadow- "$1"/etc/gshadow- "$1"/etc/sub?id-',
)

# Then: caches, logs and what names the repository on this host.
_CLEAN = (
    'rm -rf "$1"/var/cache/apt "$1"/var/cache/ldconfig/aux-cache "$1"/var/cache/debconf/*-old "$1"/var/log/*'
    ' "$1"/var/lib/apt/lists "$1"/var/lib/dpkg/*-old "$1"/etc/apt/apt.conf.d/99mmdebstrap "$1"/etc/apt/sources.list',
    'find "$1" -xdev -name __pycache__ -prune -exec rm -rf {} +',
    # mmdebstrap copies these two from the host.
    'rm -f "$1"/etc/resolv.conf; echo localhost > "$1"/etc/hostname',
)

# Its own cleaning comes after ours and leaves apt's lock files. An engine makes the devices of /dev for each container;
# an engine without root cannot unpack them, and would make another layer.
_SKIP = "cleanup/apt,output/dev"


def rootfs(
    suite: str, debs: tuple[DebArtifact, ...], files: Mapping[str, Cached], epoch: int, progress: Progress
) -> Path:
    """The tar of the base made of ``debs``, whose files are found by their SHA-256 in ``files``.

    ``epoch`` (seconds since 1970) is the time of every file. Raises HostError when mmdebstrap is not there.
    """
    recipe = {
        "suite": suite,
        "debs": sorted(deb.sha256 for deb in debs),
        "epoch": epoch,
        "hooks": (*_USER, *_CLEAN),
        "skip": _SKIP,
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    kept = cache_root() / "rootfs" / f"{key}.tar"
    note = kept.with_suffix(".sha256")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(kept.with_suffix(".lock")):
        if kept.is_file() and note.is_file() and note.read_text().strip() == sha256_of(kept):
            progress.log(f"base system: {kept.name} from the cache")
            return kept
        with scratch() as folder:
            made = _make(folder, suite, debs, files, epoch, progress)
            write_text(note, sha256_of(made) + "\n")
            made.replace(kept)
    return kept


def _make(
    folder: Path, suite: str, debs: tuple[DebArtifact, ...], files: Mapping[str, Cached], epoch: int, progress: Progress
) -> Path:
    if not shutil.which("mmdebstrap"):
        raise HostError(
            "mmdebstrap is not on this host",
            cure=f"Install it, as root: {' '.join(install_command(['mmdebstrap']))}",
        )
    progress.stage(f"base system: {len(debs)} Debian packages")
    made = folder / "rootfs.tar"
    with _open_folder(folder) as place:
        repository = place / "repository"
        _repository(repository, suite, debs, files)
        command = [
            *("mmdebstrap", "--variant=minbase", f"--include={','.join(deb.name for deb in debs)}"),
            # The repository lies in the user's cache, where apt's own unprivileged user may not look.
            *('--aptopt=APT::Sandbox::User "root"', '--aptopt=Acquire::Languages "none"'),
            *(f"--customize-hook={line}" for line in (*_USER, *_CLEAN)),
            f"--skip={_SKIP}",
            *(suite, str(made), f"deb [trusted=yes] copy:{quote(str(repository))} ./"),
        ]
        environment = {"SOURCE_DATE_EPOCH": str(epoch), "TMPDIR": str(place), "LC_ALL": "C", "TZ": "UTC"}
        process = Process(command, env=environment, merge_errors=True)
        lines: list[str] = []
        try:
            for line in process:
                progress.log(line)
                progress.item(line.strip())
                lines = [*lines[-40:], line]
            if process.wait() != 0:
                raise build_error("the Debian base (mmdebstrap)", "\n".join(lines))
        finally:
            process.stop()
    return made


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[Path]:
    """Where mmdebstrap works: ``folder``, or one that any user may enter.

    Without root, root of the new system is another user of the host (/etc/subuid), who may not enter a private home.
    """
    if os.geteuid() == 0:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}-") as place:
        Path(place).chmod(0o755)
        yield Path(place)


def _repository(folder: Path, suite: str, debs: tuple[DebArtifact, ...], files: Mapping[str, Cached]) -> None:
    """Lay out a flat apt repository: the packages and an index made of their own control files.

    It bears the suite's name, because mmdebstrap asks for the essential packages of that suite.
    """
    from debian.debfile import DebFile

    folder_of((files[deb.sha256] for deb in debs), folder)
    entries = []
    for deb in debs:
        control = DebFile(str(folder / deb.filename)).debcontrol()
        if (control["Package"], control["Version"]) != (deb.name, deb.version):
            raise IntegrityError(
                f"the lock's {deb.name} {deb.version} is {control['Package']} {control['Version']} inside",
                cure="Lock the stack's base anew: envbuilder lock STACK",
            )
        control["Filename"] = f"./{deb.filename}"
        control["Size"] = str(deb.size)
        control["SHA256"] = deb.sha256
        entries.append(str(control))
    index = folder / "Packages"
    index.write_text("\n".join(entries), encoding="utf-8")
    release = f"Suite: {suite}\nCodename: {suite}\nSHA256:\n {sha256_of(index)} {index.stat().st_size} Packages\n"
    (folder / "Release").write_text(release, encoding="utf-8")
    for path in [*folder.iterdir()]:
        _let_read(path)


def _let_read(path: Path) -> None:
    """Let everybody read a file that may be a link to one of the cache, whose mode stays."""
    if path.stat().st_mode & stat.S_IROTH:
        return
    copy = path.with_name(f".{path.name}")
    shutil.copyfile(path, copy)
    copy.chmod(0o644)
    copy.replace(path)
