"""Where a channel is read from: the canonical address stands in locks, a mirror is only where bytes come from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

MIRRORS = "ENVBUILDER_CONDA_MIRRORS"
"""Environment variable: a JSON object, canonical channel address to a list of addresses tried in order."""


def mirrors_from_environment() -> dict[str, list[str]]:
    """The mirror map handed to this process; empty when there is none."""
    text = os.environ.get(MIRRORS, "")
    found: dict[str, list[str]] = json.loads(text) if text else {}
    return {canonical.rstrip("/"): [m.rstrip("/") for m in mirrors] for canonical, mirrors in found.items()}


def base_url(channel: str) -> str:
    """The address of a channel given by name (``conda-forge``), label (``nvidia/label/x``) or address."""
    from rattler import Channel

    return str(Channel(channel).base_url).rstrip("/")


def canonical_url(url: str, read_from: dict[str, str]) -> str:
    """``url`` with the address it was read from replaced by the canonical one. ``read_from``: canonical to mirror."""
    for canonical, mirror in read_from.items():
        if url.startswith(f"{mirror}/"):
            return canonical + url[len(mirror) :]
    return url


def mirrored_urls(url: str, mirrors: dict[str, list[str]]) -> list[str]:
    """The addresses to try for a canonical package ``url``: its mirrors in order, or itself when it has none."""
    matches = [canonical for canonical in mirrors if url.startswith(f"{canonical}/")]
    if not matches:
        return [url]
    canonical = max(matches, key=len)
    return [mirror + url[len(canonical) :] for mirror in mirrors[canonical]]


@dataclass(frozen=True)
class VirtualPackages:
    """What conda-lock hands over as a channel of its own: packages that stand for the target machine."""

    packages: tuple[tuple[str, str, str], ...]  # name, version, build string

    @classmethod
    def read(cls, channel: str, platform: str) -> VirtualPackages | None:
        """The virtual packages of ``channel`` for ``platform``, or None when it is an ordinary channel."""
        if not channel.startswith("file://"):
            return None
        folder = Path(unquote(urlsplit(channel).path))
        found: list[dict[str, Any]] = []
        for subdir in (platform, "noarch"):
            path = folder / subdir / "repodata.json"
            if path.is_file():
                found.extend(json.loads(path.read_text()).get("packages", {}).values())
        if not found or any(p.get("package_type") != "virtual_system" for p in found):
            return None
        return cls(tuple(sorted({(p["name"], p["version"], p.get("build_string") or "0") for p in found})))
