"""What the codemod does to a verl: every site with its carrier, and every file that changes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files as package_files

from envbuilder.errors import InputError, Place
from envbuilder.patch import codemod, yaml_sites
from envbuilder.patch.codemod import PADDING_MODULE, Change
from envbuilder.patch.rules import By, Rules, load_rules
from envbuilder.patch.target import Target

PADDING_FILE = PADDING_MODULE.replace(".", "/") + ".py"
_HEADER = "# Added by envbuilder patch: stands in for flash_attn.bert_padding. Licensed under Apache-2.0.\n"


@dataclass(frozen=True)
class Site:
    """A site in a file (``verl/...``): what it is, who carries it and why that is safe."""

    file: str
    change: Change
    by: By
    reason: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """``changes`` maps a file to its bytes before (None: it is new) and after; ``left`` a file to why it is left."""

    version: str
    target: Target
    hook: bool
    sites: tuple[Site, ...]
    changes: Mapping[str, tuple[bytes | None, bytes]]
    left: Mapping[str, str]

    def diff(self) -> str:
        """The changes as a unified diff."""
        return "".join(
            line if line.endswith("\n") else line + "\n"
            for name, (before, after) in sorted(self.changes.items())
            for line in difflib.unified_diff(
                (before or b"").decode().splitlines(keepends=True),
                after.decode().splitlines(keepends=True),
                "/dev/null" if before is None else f"a/{name}",
                f"b/{name}",
            )
        )


def make_plan(files: Mapping[str, bytes], target: Target, *, hook: bool) -> Plan:
    """Look at every file of a verl (``verl/...`` -> bytes).

    ``hook``: verl runs with ``envbuilder.smoke.external_lib`` and its overrides, so the codemod changes only what
    they do not carry. Without it, the codemod carries all. Raises InputError for a site that is not understood.
    """
    rules = load_rules()
    sites: list[Site] = []
    changes: dict[str, tuple[bytes | None, bytes]] = {}
    left: dict[str, str] = {}
    for name, source in sorted(files.items()):
        if not codemod.mentions(source):
            continue
        below = name.removeprefix("verl/")
        reason = rules.left_alone(below)
        if reason:
            left[name] = reason
            continue
        look = codemod.rewrite if name.endswith(".py") else yaml_sites.rewrite
        found, changed = look(source, target, name, lambda c, b=below: _carrier(rules, b, c, hook)[0] == "codemod")  # type: ignore[misc]  # mypy infers no type for b
        sites += [Site(name, change, *_carrier(rules, below, change, hook)) for change in found]
        if changed != source:
            changes[name] = (source, changed)
    if any(site.change.kind == "padding" and site.by == "codemod" for site in sites):
        changes[PADDING_FILE] = (files.get(PADDING_FILE), padding_source())
    return Plan(version_of(files), target, hook, tuple(sites), changes, left)


def padding_source() -> bytes:
    """The module that takes the place of flash_attn.bert_padding, as it is written into verl."""
    return _HEADER.encode() + (package_files("envbuilder.smoke") / "bert_padding.py").read_bytes()


def version_of(files: Mapping[str, bytes]) -> str:
    """verl's version, as its own file says. Raises InputError when there is none."""
    text = files.get("verl/version/version", b"").decode(errors="replace").strip()
    if not re.fullmatch(r"\d+\.\d+[\w.+]*", text):
        raise InputError(
            "this is no verl: there is no version in verl/version/version",
            place=Place("verl/version/version"),
            cure="Give the folder that holds verl/, an installed verl, or verl's wheel.",
        )
    return text


def _carrier(rules: Rules, below: str, change: Change, hook: bool) -> tuple[By, str, tuple[str, ...]]:
    if not hook:
        return "codemod", rules.kinds[change.kind].why, ()
    row = rules.carrier_of(change.kind, below, change.shape, change.top)
    return row.by, row.reason, row.overrides
