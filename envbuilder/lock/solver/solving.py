"""Solving: requirements and channels to records, in strict channel priority; and why it cannot be done."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.lock.solver.channels import (
    VirtualPackages,
    base_url,
    canonical_url,
    mirrors_from_environment,
)

if TYPE_CHECKING:
    from rattler import Gateway, GenericVirtualPackage, MatchSpec, RepoDataRecord

CACHE = "ENVBUILDER_SOLVER_CACHE"
"""Environment variable: the folder repodata is cached in; without it, nothing is kept."""
OFFLINE = "ENVBUILDER_SOLVER_OFFLINE"
"""Environment variable: set to 1, only cached repodata is used, however old."""
SHOWN_VERSIONS = 8
SHOWN_REASON = 300


class UnsatisfiableError(Exception):
    """No set of packages meets the requirements.

    ``sentence`` names a smallest set of requirements that contradict one another, ``conflict`` holds them, ``dump``
    is what the solver itself said.
    """

    def __init__(self, sentence: str, conflict: list[str], dump: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.conflict = conflict
        self.dump = dump


class ChannelError(Exception):
    """A channel cannot be read from any of its addresses."""


@dataclass
class Problem:
    """What to solve: channels in order of priority, the target platform, its virtual packages."""

    gateway: Gateway
    sources: list[str]
    read_from: dict[str, str]
    platform: str
    virtual_packages: list[GenericVirtualPackage]

    async def solve(self, specs: list[str], kept: dict[str, str]) -> list[dict[str, Any]]:
        """Records (as in repodata, with canonical ``url``, ``channel`` and ``fn``). Raises UnsatisfiableError.

        ``kept`` (name to address) are packages that stay in the set, at that very file unless ``specs`` ask for the
        package or another one needs it to move.
        """
        from rattler.exceptions import SolverError

        moving = {_name(spec) for spec in specs}
        staying = {name: url for name, url in kept.items() if name not in moving}
        locked = await self._records_at(staying)
        specs = [*specs, *staying]
        try:
            records = await self._solve(specs, locked)
        except SolverError as error:
            conflict, reason = await self._smallest_conflict(specs, locked, str(error))
            raise UnsatisfiableError(await self._sentence(conflict, reason), conflict, str(error)) from None
        return [self._plain(record) for record in records]

    async def _records_of(self, names: list[str]) -> list[RepoDataRecord]:
        groups = await self.gateway.query(self.sources, [self.platform, "noarch"], names, recursive=False)
        return [record for group in groups for record in group]

    async def _records_at(self, urls: dict[str, str]) -> list[RepoDataRecord]:
        """The channels' own records of ``urls`` (name to address); one that is gone from its channel is left out."""
        wanted = set(urls.values())
        records = await self._records_of(list(urls)) if urls else []
        return [record for record in records if canonical_url(record.url, self.read_from) in wanted]

    async def _solve(self, specs: list[str], locked: list[RepoDataRecord]) -> list[RepoDataRecord]:
        from rattler import ChannelPriority, solve

        records: list[RepoDataRecord] = await solve(
            sources=self.sources,
            specs=[parse_spec(spec) for spec in specs],
            gateway=self.gateway,
            platforms=[self.platform, "noarch"],
            locked_packages=locked,
            virtual_packages=self.virtual_packages,
            channel_priority=ChannelPriority.Strict,
        )
        return records

    async def _smallest_conflict(
        self, specs: list[str], locked: list[RepoDataRecord], said: str
    ) -> tuple[list[str], str]:
        """A subset of ``specs`` that cannot be met, and can without any one of its members; what the solver says of it.

        ``said`` is what it said of all of ``specs``.
        """
        from rattler.exceptions import SolverError

        conflict = list(specs)
        for spec in specs:
            rest = [other for other in conflict if other != spec]
            try:
                await self._solve(rest, locked)
            except SolverError as error:
                conflict, said = rest, str(error)
        return conflict, said

    async def _sentence(self, conflict: list[str], dump: str) -> str:
        if len(conflict) == 1:
            sentence = await self._about_one(conflict[0])
            if sentence:
                return sentence
        missing = sorted(set(re.findall(r"(__[a-z]+[^,\n]*?), for which no candidates were found", dump)))
        virtual = f"; the virtual package {' and '.join(missing)} is not among those given" if missing else ""
        if len(conflict) == 1:
            return f"{conflict[0]} cannot be installed{virtual}: {_reason(dump)}"
        listed = ", ".join(conflict[:-1]) + f" and {conflict[-1]}"
        return f"{listed} contradict one another{virtual}: {_reason(dump)}"

    async def _about_one(self, text: str) -> str | None:
        """What is wrong with a requirement that no record meets; None when there are such records."""
        spec = parse_spec(text)
        name = _name(text)
        records = await self._records_of([name])
        if not records:
            return f"no channel holds a package named {name}"
        if any(spec.matches(record) for record in records):
            return None
        from rattler import VersionWithSource

        versions = sorted({str(r.version) for r in records}, key=VersionWithSource, reverse=True)
        more = f" and {len(versions) - SHOWN_VERSIONS} more" if len(versions) > SHOWN_VERSIONS else ""
        return f"no channel holds {text}; {name} is there as {', '.join(versions[:SHOWN_VERSIONS])}{more}"

    def _plain(self, record: RepoDataRecord) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(record.to_json())
        url = canonical_url(record.url, self.read_from)
        return {**data, "url": url, "channel": url.rsplit("/", 2)[0], "fn": record.file_name}


def _name(spec: str) -> str:
    return str(parse_spec(spec).name.normalized)


def parse_spec(text: str) -> MatchSpec:
    """A requirement as conda-lock writes it. ``name 1.2.3 build`` asks for exactly 1.2.3; rattler wants it said."""
    from rattler import MatchSpec

    parts = text.split()
    if len(parts) == 3 and parts[1][0].isdigit() and not parts[1].endswith("*"):
        text = f"{parts[0]} =={parts[1]} {parts[2]}"
    return MatchSpec(text)


async def problem_for(channels: list[str], platform: str) -> Problem:
    """Read the channels (through mirrors, where some are set). Raises ChannelError naming the address."""
    from rattler import Gateway, GenericVirtualPackage, SourceConfig, Version
    from rattler.package import BuildString, PackageName

    offline = os.environ.get(OFFLINE) == "1"
    cache = os.environ.get(CACHE)
    action = "force-cache-only" if offline else "cache-or-fetch" if cache else "no-cache"
    gateway = Gateway(
        cache_dir=Path(cache) if cache else None,
        default_config=SourceConfig(cache_action=action),
    )
    mirrors = mirrors_from_environment()
    sources: list[str] = []
    read_from: dict[str, str] = {}
    virtual: list[GenericVirtualPackage] = []
    for channel in channels:
        given = VirtualPackages.read(channel, platform)
        if given is not None:
            virtual.extend(
                GenericVirtualPackage(PackageName(name), Version(version), BuildString(build))
                for name, version, build in given.packages
            )
            continue
        canonical = base_url(channel)
        address = await _first_readable(gateway, canonical, mirrors.get(canonical, [canonical]), platform)
        sources.append(address)
        read_from[canonical] = address
    return Problem(gateway, sources, read_from, platform, virtual)


async def _first_readable(gateway: Gateway, canonical: str, addresses: list[str], platform: str) -> str:
    said: list[str] = []
    for address in addresses:
        try:
            await gateway.names([address], [platform, "noarch"])
        except Exception as error:  # py-rattler raises several unrelated classes here
            said.append(f"{address}: {' '.join(str(error).split())}")
        else:
            return address
    raise ChannelError(f"the channel {canonical} cannot be read\n" + "\n".join(said))


def _reason(dump: str) -> str:
    """What requires what, out of the solver's tree of causes, as one line: ``a 1 requires b >=2; ...``."""
    causes: list[str] = []
    above: list[str] = []
    for line in dump.splitlines():
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 3
        text = line.strip(" │├└─.")
        above = [*above[:depth], *[""] * (depth - len(above)), text]
        parent = above[depth - 1] if depth else ""
        if parent.endswith("would require"):
            causes.append(f"{parent.removesuffix('would require')}requires {re.split(', (?:for )?which', text)[0]}")
    text = "; ".join(dict.fromkeys(causes)) or " ".join(dump.split())
    return text if len(text) <= SHOWN_REASON else f"{text[:SHOWN_REASON].rsplit(';', 1)[0]}; ..."
