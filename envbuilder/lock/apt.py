"""apt with a state of its own: it resolves for a suite as on an empty machine, whatever runs on this one.

Of the client's apt configuration only how to reach a mirror is taken (proxies, certificates, credentials, timeouts);
its preferences, hooks and sources are not. Every index is verified with the Debian keyring.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder.errors import HostError, InputError, Place, SourceError
from envbuilder.files import write_text
from envbuilder.lock.client import redact

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# The client's settings that say how a mirror is reached, and whether an old snapshot of it may serve.
_TAKEN = re.compile(r"^Acquire::(https?|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date|Max-ValidTime)\b")
# How long a mirror is waited for, unless the client's own settings say otherwise (apt's defaults come to minutes).
_PATIENCE = ('Acquire::http::Timeout "15";', 'Acquire::https::Timeout "15";', 'Acquire::Retries "2";')
_URI_LINE = re.compile(r"^'(?P<uri>[^']+)' (?P<file>\S+) (?P<size>\d+) SHA256:(?P<sha256>[0-9a-f]{64})$")
_UNVERIFIED = re.compile(r"NO_PUBKEY|not signed|BADSIG|EXPKEYSIG|signatures? (was|were) invalid|couldn't be verified")


@dataclass(frozen=True)
class Archive:
    """A suite of an archive at a mirror, with the components that are read. ``mirror`` has no slash at its end."""

    mirror: str
    suite: str
    components: tuple[str, ...]


@dataclass(frozen=True)
class Download:
    """A package as apt would fetch it: address, ``name_version_arch.deb``, size in bytes, SHA-256."""

    uri: str
    file: str
    size: int
    sha256: str


class PrivateApt:
    """apt on ``folder``, which keeps the verified indexes between runs. One process at a time may use a folder."""

    def __init__(self, folder: Path, archives: Sequence[Archive]) -> None:
        if not KEYRING.is_file():
            raise HostError(
                "the keyring that Debian's archive is verified with is not there",
                place=Place(str(KEYRING)),
                cure="Install it: apt-get install debian-archive-keyring",
            )
        self._folder = folder
        self._archives = archives
        for name in (
            "lists/partial",
            "archives/partial",
            "etc/apt.conf.d",
            "etc/preferences.d",
            "etc/trusted.gpg.d",
            "log",
        ):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        write_text(folder / "apt.conf", "\n".join([*_PATIENCE, *_reaching(), *self._settings()]) + "\n")
        self._sources(None)

    def update(self) -> None:
        """Fetch and verify the indexes. Raises SourceError naming what does not answer or is not signed."""
        run = self._run("update", "-o", "APT::Update::Error-Mode=any")
        # An apt older than 2.1 knows no Error-Mode and goes on with the old index.
        if run.returncode or "Failed to fetch" in run.stderr:
            raise SourceError(
                "the signature of the Debian mirror's index does not hold"
                if _UNVERIFIED.search(run.stderr)
                else "the Debian mirror does not answer as one",
                cure="Check the mirror apt is set to (or debian.mirror in envbuilder.toml), proxy and certificates.",
                detail=_faults(run.stderr),
            )

    def release(self, suite: str) -> str:
        """The point release of ``suite`` as its signed index states it, say 12.15; empty when it states none."""
        run = self._run("indextargets", "--format", "$(VERSION)", f"Release: {suite}", "Created-By: Packages")
        versions = [line for line in run.stdout.splitlines() if not line.startswith("$(")]
        return versions[0] if versions else ""

    def install(self, wanted: Sequence[str], components: Sequence[str]) -> Iterator[Download]:
        """What installing ``wanted`` on an empty machine brings, without recommendations.

        Only ``components`` are looked at. Raises InputError with apt's own words when there is no solution.
        """
        options = ["-o", f"Dir::Etc::sourceparts={self._sources(components)}/"]
        run = self._run("install", "--print-uris", "-y", "-qq", *options, *wanted)
        if run.returncode:
            raise InputError(
                "the Debian packages cannot be installed together",
                place=Place(field="debian"),
                cure="Change the packages or components named here, in the stack.",
                detail=_faults(run.stderr),
            )
        for line in run.stdout.splitlines():
            found = _URI_LINE.match(line)
            if found is None:
                raise SourceError(f"the mirror's index does not say all of a package: {redact(line)}")
            yield Download(found["uri"], found["file"], int(found["size"]), found["sha256"])

    def _settings(self) -> Iterator[str]:
        """Everything that could bring the state or the taste of this machine in, set to ours."""
        folder = self._folder
        folders = {
            "Dir::State": folder,
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder,
            "Dir::Cache::archives": folder / "archives",
            "Dir::Log": folder / "log",
            "Dir::Etc": folder / "etc",
            "Dir::Etc::sourceparts": folder / "sources-all",
            # Passwords of mirrors stay where apt keeps them.
            "Dir::Etc::netrc": "/etc/apt/auth.conf",
            "Dir::Etc::netrcparts": "/etc/apt/auth.conf.d",
        }
        for key, value in folders.items():
            yield f"{key} {json.dumps(str(value))};"
        yield 'APT::Architecture "amd64";'
        yield 'APT::Architectures { "amd64"; };'
        yield 'APT::Install-Recommends "false";'
        yield 'APT::Get::AllowUnauthenticated "false";'
        yield 'Acquire::Languages "none";'
        yield 'Acquire::ForceHash "SHA256";'
        if os.geteuid() == 0:
            # apt drops to a user of its own, who may not write here.
            yield 'APT::Sandbox::User "root";'

    def _sources(self, components: Sequence[str] | None) -> Path:
        """The folder of sources for ``components``; for all of them when None."""
        folder = self._folder / f"sources-{'-'.join(components) if components else 'all'}"
        folder.mkdir(exist_ok=True)
        parts = []
        for archive in self._archives:
            read = [c for c in archive.components if components is None or c in components]
            if read:
                parts.append(
                    f"Types: deb\nURIs: {archive.mirror}\nSuites: {archive.suite}\nComponents: {' '.join(read)}\n"
                    f"Architectures: amd64\nSigned-By: {KEYRING}\n"
                )
        write_text(folder / "debian.sources", "\n".join(parts))
        return folder

    def _run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "APT_CONFIG": str(self._folder / "apt.conf"), "LC_ALL": "C.UTF-8"}
        # Without the client's apt.conf: APT_CONFIG is read first, and Dir::Etc::* there says where to read on.
        return subprocess.run([_program("apt-get"), *arguments], env=env, capture_output=True, text=True, check=False)


def _reaching() -> Iterator[str]:
    """The client's settings of proxies, certificates, retries and the age of indexes."""
    run = subprocess.run([_program("apt-config"), "dump"], capture_output=True, text=True, check=False)
    for line in run.stdout.splitlines():
        if _TAKEN.match(line):
            yield line


def _program(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise HostError(
            f"{name} is not there, and Debian packages are resolved by apt itself",
            cure="Lock on a Debian or Ubuntu host, or in a container of one.",
        )
    return path


def _faults(stderr: str) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    faults = [line for line in lines if line.startswith(("E:", "Err:", "W:"))] or lines
    return redact("\n".join(faults[:20]))
