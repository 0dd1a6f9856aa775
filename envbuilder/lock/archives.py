"""Where Debian's archives are for this host: the user's settings first, then what apt is set to."""

from __future__ import annotations

import shutil
import subprocess
from typing import Literal

from envbuilder.errors import SourceError
from envbuilder.stack.settings import Settings

Kind = Literal["debian", "security"]
_LABELS = {"debian": "Debian", "security": "Debian-Security"}
_SETTING = {"debian": "mirror", "security": "security_mirror"}


def kind_of(suite: str) -> Kind:
    """Which archive a suite stands in: security updates have their own."""
    return "security" if suite.endswith("-security") else "debian"


def mirror_of(suite: str, settings: Settings) -> str:
    """The address of the mirror that serves ``suite``, without a slash at its end.

    Raises SourceError when neither the settings nor apt name one.
    """
    kind = kind_of(suite)
    configured: str | None = getattr(settings.debian, _SETTING[kind])
    found = configured or _of_apt(suite, kind)
    if found is None:
        raise SourceError(
            f"this host's apt names no mirror that serves Debian's {suite}",
            cure=f'Name one in envbuilder.toml: [debian] {_SETTING[kind]} = "..."',
        )
    return found.rstrip("/")


def _of_apt(suite: str, kind: Kind) -> str | None:
    """The mirror apt reads ``suite`` from; else, on a Debian of another release, the one it reads Debian from."""
    rows = [line.split("|", 4) for line in _indextargets().splitlines() if line.count("|") >= 4]
    for release, codename, _, _, uri in rows:
        if suite in (release, codename):
            return uri
    for _, _, origin, label, uri in rows:
        if origin == "Debian" and label == _LABELS[kind]:
            return uri
    return None


def _indextargets() -> str:
    """What apt reads, a line each: release, code name, origin, label, address."""
    program = shutil.which("apt-get")
    if program is None:
        return ""
    fields = "$(RELEASE)|$(CODENAME)|$(ORIGIN)|$(LABEL)|$(REPO_URI)"
    command = [program, "indextargets", "--format", fields, "Created-By: Packages"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
