"""A finished document held against the image's own databases: does it name every package that owns a file?"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from envbuilder.publish.sbom.model import Contents, Kind
from envbuilder.report.model import Confidence, Finding, Report, Severity, Table, Verdict

_DEPTH = 3
_ROWS = 12


def check(contents: Contents, document: str, name: str) -> Report:
    """Whether ``document`` (either format) names every package whose database lists a file of the image.

    The packages are read a second time for it: from the names of dpkg's lists, of RECORD folders and of conda's
    records, not from what they say.
    """
    named = _named(json.loads(document))
    missing = sorted((kind.value, one) for kind, one in contents.owners if not _has(named, kind, one))
    findings = [
        Finding(
            "sbom-package-missing",
            Severity.ERROR,
            f"{one} owns files of the image and is not in the document",
            cause=f"Its {_DATABASE[Kind(kind)]} lists files that are there; its description cannot be read.",
            cure="Build the image anew, so that its package databases are whole.",
            confidence=Confidence.MEASURED,
        )
        for kind, one in missing
    ]
    findings += [
        Finding(
            "sbom-not-locked",
            Severity.ERROR,
            f"{component.name} {component.version} is in the image and not in its lock",
            cause="Something was installed after or beside what the lock names.",
            cure="Build the image anew from its lock, or add the package to the stack and lock again.",
            evidence=(component.purl,),
            confidence=Confidence.MEASURED,
        )
        for component in contents.unlocked
    ]
    findings += [
        Finding("sbom-unreadable", Severity.WARNING, "a part of the image could not be read", evidence=(what,))
        for what in contents.unseen
    ]
    wrong = bool(missing or contents.unlocked)
    verdict = Verdict.NO if wrong else Verdict.UNKNOWN if contents.unseen else Verdict.YES
    return Report(
        "sbom",
        name,
        verdict,
        _summary(contents, len(missing)),
        tuple(findings),
        facts=_facts(contents, missing),
        tables=(_packages(contents), _strangers(contents)),
    )


_DATABASE = {Kind.DEBIAN: "dpkg list", Kind.PYTHON: "RECORD", Kind.CONDA: "conda record"}


def _named(document: Any) -> set[tuple[str, str]]:
    """(type, name) of every package URL of a document."""
    from packageurl import PackageURL

    if "spdxVersion" in document:
        locators = [r["referenceLocator"] for p in document["packages"] for r in p.get("externalRefs", [])]
    else:
        locators = [c["purl"] for c in document.get("components", []) if "purl" in c]
    urls = [PackageURL.from_string(one) for one in locators]
    return {(url.type, url.name) for url in urls}


def _has(named: set[tuple[str, str]], kind: Kind, name: str) -> bool:
    # What was built from source is named by its repository.
    return (kind.value, name) in named or (
        kind is Kind.PYTHON and {("github", name), ("generic", name)} & named != set()
    )


def _summary(contents: Contents, missing: int) -> str:
    owned = contents.files - len(contents.strangers)
    lock = "" if contents.lock_read else "; the lock it was built from is not at hand, so no digest is known"
    if missing:
        return f"{missing} of {len(contents.owners)} packages that own files are not in the document{lock}"
    return (
        f"all {len(contents.owners)} packages that own files are in the document; {owned} of {contents.files} files "
        f"belong to a package, {len(contents.strangers)} to none{lock}"
    )


def _facts(contents: Contents, missing: list[tuple[str, str]]) -> dict[str, Any]:
    return {
        "image": contents.digest,
        "lock": contents.lock,
        "lock_read": contents.lock_read,
        "components": len(contents.components),
        "owners": len(contents.owners),
        "missing": [{"kind": kind, "name": name} for kind, name in missing],
        "not_locked": [component.purl for component in contents.unlocked],
        "files": contents.files,
        "files_without_package": list(contents.strangers),
    }


def _packages(contents: Contents) -> Table:
    titles = {
        Kind.DEBIAN: "Debian packages",
        Kind.PYTHON: "Python distributions",
        Kind.CONDA: "conda packages",
        Kind.SOURCE: "built from source",
        Kind.IMAGE: "base images",
        Kind.OWN: "envbuilder",
    }
    rows = []
    for kind, title in titles.items():
        found = [c for c in contents.components if c.kind is kind]
        if found:
            counts = (len(found), sum(bool(c.sha256) for c in found), sum(bool(c.licences) for c in found))
            rows.append((title, *map(str, counts), str(sum(c.files for c in found))))
    return Table("packages", ("kind", "packages", "digest known", "licence known", "files"), tuple(rows))


def _strangers(contents: Contents) -> Table:
    groups = Counter("/".join(path.split("/")[:-1][:_DEPTH]) for path in contents.strangers)
    examples = {"/".join(path.split("/")[:-1][:_DEPTH]): path for path in reversed(contents.strangers)}
    most = sorted(groups.items(), key=lambda item: (-item[1], item[0]))
    rows = [(f"/{folder}", str(count), f"/{examples[folder]}") for folder, count in most[:_ROWS]]
    if len(most) > _ROWS:
        rows.append((f"{len(most) - _ROWS} other folders", str(sum(count for _, count in most[_ROWS:])), ""))
    return Table("files that belong to no package", ("folder", "files", "such as"), tuple(rows))
