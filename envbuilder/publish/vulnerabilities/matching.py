"""Whether an OSV record concerns a package at its version, by the evaluation that the OSV schema lays down.

A version is affected when the record lists it, or when it stands in one of its ranges: events in order, ``introduced``
opens, ``fixed`` closes from that version on, ``last_affected`` after it. Versions are ordered as their ecosystem
orders them. Commits have no order without their repository, so only the commits a record names can be told.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from envbuilder.publish.sbom.model import Component, Kind, System
from envbuilder.publish.vulnerabilities.records import listed


class _Ordered(Protocol):
    def __lt__(self, other: Any, /) -> bool: ...


Order = Callable[[str], _Ordered]


@dataclass(frozen=True)
class Query:
    """A package as OSV knows it. ``ecosystem`` is ``PyPI``, ``Debian:12``, or empty for a source tree at a commit."""

    component: Component
    ecosystem: str
    name: str
    version: str


@dataclass(frozen=True)
class Match:
    """A record that concerns a package. ``fixed`` is the lowest version without it above ours, empty when none is."""

    query: Query
    record: Mapping[str, Any]
    affected: Mapping[str, Any]
    fixed: str
    why: str
    sure: bool = True


def queries_of(components: tuple[Component, ...], system: System) -> Iterator[Query]:
    """What can be asked of a database. Debian's records name source packages."""
    release = {"debian": "Debian", "ubuntu": "Ubuntu"}.get(system.id, "")
    for one in components:
        if one.kind is Kind.PYTHON:
            yield Query(one, "PyPI", one.name, one.version)
        elif one.kind is Kind.DEBIAN and release:
            yield Query(one, f"{release}:{system.version}", *one.source)
        elif one.kind is Kind.SOURCE:
            yield Query(one, "", one.properties["repository"].removesuffix(".git"), one.properties["commit"])


class Matcher:
    """Finds the queries that records concern."""

    def __init__(self, queries: tuple[Query, ...]) -> None:
        self._by_name: dict[str, list[Query]] = {}
        for query in queries:
            self._by_name.setdefault(_fold(query.name), []).append(query)

    def matches(self, record: Mapping[str, Any]) -> Iterator[Match]:
        """Every package that ``record`` concerns; nothing when it was withdrawn."""
        if record.get("withdrawn"):
            return
        for affected in listed(record, "affected"):
            package = affected.get("package")
            if isinstance(package, dict):
                for query in self._by_name.get(_fold(str(package.get("name", ""))), ()):
                    if query.ecosystem and _same(str(package.get("ecosystem", "")), query.ecosystem):
                        found = _versions(query, affected)
                        if found:
                            yield Match(query, record, affected, *found)
            for span in listed(affected, "ranges"):
                repository = str(span.get("repo", "")).removesuffix(".git")
                if span.get("type") == "GIT" and repository:
                    for query in self._by_name.get(_fold(repository), ()):
                        if not query.ecosystem:
                            yield from _commits(query, record, affected, span)


def _fold(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _same(ecosystem: str, wanted: str) -> bool:
    """``Debian`` is every release; ``Ubuntu:22.04:LTS`` is ``Ubuntu:22.04``."""
    return wanted == ecosystem or wanted.startswith(f"{ecosystem}:") or ecosystem.startswith(f"{wanted}:")


def _versions(query: Query, affected: Mapping[str, Any]) -> tuple[str, str] | None:
    """(lowest fixed version above ours, why), or None when the version is not affected."""
    order = _debian if query.ecosystem.partition(":")[0] in ("Debian", "Ubuntu") else _python
    try:
        version = order(query.version)
    except ValueError:
        return None
    spans = [span for span in listed(affected, "ranges") if span.get("type") in ("ECOSYSTEM", "SEMVER")]
    hits = [said for span in spans if (said := _in_range(version, span, order))]
    named = affected.get("versions")
    if isinstance(named, list) and (query.version in named or _equal_to_any(version, named, order)):
        hits.append("its version is listed")
    if not hits:
        return None
    fixed = [
        (order(text), text)
        for span in spans
        for kind, text in _events(span)
        if kind == "fixed" and _parses(text, order) and version < order(text)
    ]
    return min(fixed, key=lambda pair: pair[0])[1] if fixed else "", "; ".join(hits)


def _in_range(version: _Ordered, span: Mapping[str, Any], order: Order) -> str:
    """The stretch of versions ``version`` stands in, or an empty string."""
    events: list[tuple[_Ordered | None, str, str]] = []
    limits = []
    for kind, text in _events(span):
        if kind == "introduced" and text == "0":
            events.append((None, kind, text))
        elif not _parses(text, order):
            continue
        elif kind == "limit":
            limits.append(order(text))
        else:
            events.append((order(text), kind, text))
    if limits and not any(version < limit for limit in limits):
        return ""
    since = ""
    for at, kind, text in _sorted(events):
        if kind == "introduced" and (at is None or not version < at):
            since = text
        elif at is not None and kind != "introduced" and (at < version or (kind == "fixed" and not version < at)):
            since = ""
    if not since:
        return ""
    ends = [f"{kind.replace('_', ' ')} {text}" for at, kind, text in events if at is not None and kind != "introduced"]
    return f"introduced {since}" + (f", {', '.join(ends)}" if ends else "")


def _sorted(events: list[tuple[_Ordered | None, str, str]]) -> list[tuple[_Ordered | None, str, str]]:
    """By version; what closes at a version comes before what opens there again."""
    from functools import cmp_to_key

    def compare(one: tuple[_Ordered | None, str, str], two: tuple[_Ordered | None, str, str]) -> int:
        first, second = one[0], two[0]
        if first is None or second is None:
            return (first is not None) - (second is not None)
        if first < second:
            return -1
        return 1 if second < first else (one[1] == "introduced") - (two[1] == "introduced")

    return sorted(events, key=cmp_to_key(compare))


def _commits(
    query: Query, record: Mapping[str, Any], affected: Mapping[str, Any], span: Mapping[str, Any]
) -> Iterator[Match]:
    named = {text: kind for kind, text in _events(span)}
    fixed = next((text for text, kind in named.items() if kind == "fixed"), "")
    kind = named.get(query.version)
    if kind in ("introduced", "last_affected"):
        yield Match(query, record, affected, fixed, f"the commit itself is named: {kind.replace('_', ' ')}")
    elif kind is None:
        yield Match(query, record, affected, fixed, "whether the commit is before or after it is not known", sure=False)


def _events(span: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for event in listed(span, "events"):
        for kind in ("introduced", "fixed", "last_affected", "limit"):
            text = event.get(kind)
            if isinstance(text, str) and not (kind == "limit" and text == "*"):
                yield kind, text


def _equal_to_any(version: _Ordered, named: list[Any], order: Order) -> bool:
    return any(isinstance(one, str) and _parses(one, order) and order(one) == version for one in named)


def _parses(text: str, order: Order) -> bool:
    try:
        order(text)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=100_000)
def _python(text: str) -> _Ordered:
    from packaging.version import Version

    return Version(text)


@lru_cache(maxsize=100_000)
def _debian(text: str) -> _Ordered:
    from debian.debian_support import Version

    version: _Ordered = Version(text)
    return version
