"""Known vulnerabilities as findings: one for each package and fault, however many databases name it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from envbuilder.errors import Place
from envbuilder.publish.sbom.model import Contents, Kind
from envbuilder.publish.vulnerabilities.matching import Match, Matcher, queries_of
from envbuilder.publish.vulnerabilities.records import listed, read_databases
from envbuilder.report.model import Confidence, Finding, Report, Severity, Verdict
from envbuilder.report.progress import Progress

_HIGH = 7.0


def known_vulnerabilities(contents: Contents, paths: tuple[Path, ...], name: str, progress: Progress) -> Report:
    """What the databases in ``paths`` know of the packages in an image. Raises InputError for what is no database."""
    queries = tuple(queries_of(contents.components, contents.system))
    database = read_databases(paths, {query.name for query in queries}, progress)
    matcher = Matcher(queries)
    matches = [match for record in database.records for match in matcher.matches(record)]
    groups = list(_grouped(matches))
    findings = sorted((_finding(group) for group in groups), key=_order)
    asked = {query.ecosystem.partition(":")[0] for query in queries if query.ecosystem}
    unknown = sorted(asked - database.ecosystems)
    unasked = sum(1 for c in contents.components if c.kind is Kind.CONDA)
    bad = [finding for finding in findings if finding.severity is not Severity.ADVICE]
    verdict = Verdict.NO if bad else Verdict.UNKNOWN if unknown or database.unreadable else Verdict.YES
    known = "1 known vulnerability" if len(bad) == 1 else f"{len(bad) or 'no'} known vulnerabilities"
    said = [f"{known} in {len(queries)} packages by {database.read} record{'s' if database.read != 1 else ''}"]
    if unknown:
        said.append(f"; the database has no record of {' or '.join(unknown)}, so those packages were not looked up")
    if unasked:
        said.append(f"; {unasked} conda packages were not looked up: OSV has no records of theirs")
    if database.unreadable:
        said.append(f"; {database.unreadable} records could not be read")
    facts = {
        "records": database.read,
        "unreadable": database.unreadable,
        "newest": database.newest,
        "ecosystems": sorted(database.ecosystems - {""}),
        "not_in_database": unknown,
        "packages": len(queries),
        "vulnerabilities": [_fact(group) for group in groups],
    }
    return Report("sbom", name, verdict, " ".join(said).replace(" ;", ";"), tuple(findings), facts=facts)


def _grouped(matches: Iterable[Match]) -> Iterator[list[Match]]:
    """The matches of one package (Debian: one source package) whose records are the same fault by ids and aliases."""
    by_package: dict[tuple[str, str, str], list[Match]] = {}
    for match in matches:
        query = match.query
        by_package.setdefault((query.ecosystem, query.name, query.version), []).append(match)
    for package in by_package.values():
        groups: list[tuple[set[str], list[Match]]] = []
        for match in package:
            ids = _ids(match.record)
            same = [group for group in groups if group[0] & ids]
            merged = (ids.union(*(g[0] for g in same)), [m for g in same for m in g[1]] + [match])
            groups = [group for group in groups if group not in same] + [merged]
        yield from (group for _, group in groups)


def _ids(record: Mapping[str, Any]) -> set[str]:
    # `upstream` is what Debian's records call the fault they carry over.
    names = [one for key in ("aliases", "upstream") for one in _strings(record, key)]
    return {str(record["id"]), *names}


def _strings(data: Mapping[str, Any], key: str) -> list[str]:
    found = data.get(key)
    return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []


def _finding(group: list[Match]) -> Finding:
    first = next((match for match in group if match.sure), group[0])
    score, vector = _score(group)
    fixed = next((match.fixed for match in group if match.fixed), "")
    names = sorted(set().union(*(_ids(match.record) for match in group)))
    summary = next((str(m.record["summary"]) for m in group if m.record.get("summary")), "a known vulnerability")
    if not first.sure or _unimportant(group):
        severity = Severity.ADVICE
    else:
        severity = Severity.ERROR if score is None or score >= _HIGH else Severity.WARNING
    rated = f"{score} of 10 ({vector})" if score is not None else "not rated"
    return Finding(
        str(first.record["id"]),
        severity,
        f"{first.query.name} {first.query.version}: {_line(summary)}",
        place=Place(", ".join(_packages(group))),
        cause=f"{', '.join(names)}; {rated}; {first.why}",
        cure=f"Fixed in {fixed}: raise it in the stack and lock again." if fixed else "No fixed version is known.",
        sources=tuple(sorted({f"osv.dev/vulnerability/{match.record['id']}" for match in group})),
        confidence=Confidence.SOURCED if first.sure else Confidence.UNRESOLVED,
    )


def _packages(group: list[Match]) -> list[str]:
    return sorted({match.query.component.purl for match in group})


def _line(text: str) -> str:
    return " ".join(text.split())[:200]


def _unimportant(group: list[Match]) -> bool:
    """What Debian's security team calls unimportant: no fault in what is packaged."""
    said = [match.affected.get("ecosystem_specific") for match in group]
    return any(isinstance(one, dict) and one.get("urgency") == "unimportant" for one in said)


def _score(group: list[Match]) -> tuple[float | None, str]:
    """The highest CVSS base score among the records, and its vector."""
    from cvss import CVSS2, CVSS3, CVSS4
    from cvss.exceptions import CVSSError

    best: tuple[float | None, str] = (None, "")
    for match in group:
        for one in (*listed(match.record, "severity"), *listed(match.affected, "severity")):
            kind = {"CVSS_V2": CVSS2, "CVSS_V3": CVSS3, "CVSS_V4": CVSS4}.get(str(one.get("type")))
            if kind is None:
                continue
            try:
                parsed = kind(str(one.get("score", "")))
                score = float(parsed.scores()[0])
            except (CVSSError, ValueError):
                continue
            if best[0] is None or score > best[0]:
                best = (score, str(one["score"]))
    return best


def _order(finding: Finding) -> tuple[int, str, str]:
    rank = {Severity.ERROR: 0, Severity.WARNING: 1, Severity.ADVICE: 2}
    return rank[finding.severity], str(finding.place), finding.rule


def _fact(group: list[Match]) -> dict[str, Any]:
    score, vector = _score(group)
    return {
        "packages": _packages(group),
        "ids": sorted(set().union(*(_ids(match.record) for match in group))),
        "score": score,
        "vector": vector,
        "fixed": next((match.fixed for match in group if match.fixed), None),
        "sure": any(match.sure for match in group),
    }
