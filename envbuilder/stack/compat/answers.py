"""The tables asked by a person: which builds run on these cards, which is the newest, what to take instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from envbuilder.errors import InputError
from envbuilder.report import Confidence, Finding, Report, Severity, Verdict
from envbuilder.stack.compat.cards import Card
from envbuilder.stack.compat.cuda import cuda_of_tag, cuda_table, last_branch, toolkit
from envbuilder.stack.compat.packages import builds_for_torch, built_for, floor, packages
from envbuilder.stack.compat.torch_builds import Release, TorchBuild, ended, exists, release, torch_builds
from envbuilder.stack.compat.verl_keys import verl_tables

_CONFIDENCE = {"measured": Confidence.MEASURED, "verified-by-two": Confidence.SOURCED, "one-source": Confidence.SOURCED}


@dataclass(frozen=True)
class Question:
    """What is asked. ``torch`` is a version or its beginning (``2.9``), ``driver`` what the host runs, if known."""

    cards: tuple[Card, ...]
    torch: str = ""
    wants: tuple[str, ...] = ()
    driver: str = ""


@dataclass(frozen=True)
class Build:
    """One torch version for one CUDA tag."""

    version: str
    row: TorchBuild

    def __str__(self) -> str:
        return f"{self.version}+{self.row.cuda}"


def answer(question: Question) -> Report:
    """The report: yes when everything asked for has a build that runs, no when something cannot, else not enough."""
    findings = [*_torch(question), *_wants(question)]
    if not (question.torch or question.wants) or question.driver:
        findings += _host(question)
    verdicts = [_verdict(f) for f in findings]
    worst = next((v for v in (Verdict.NO, Verdict.UNKNOWN) if v in verdicts), Verdict.YES)
    builds = _running(question)
    everything = builds or _running(question, any_version=True)
    cards = " and ".join(dict.fromkeys(f"{c.title} (compute capability {c.capability})" for c in question.cards))
    newest = str(max(everything, key=_order)) if everything else ""
    said = [finding.title for finding in findings if _verdict(finding) is not Verdict.YES]
    said.append(f"the newest build known to run is {newest}" if newest else "no build is known to run")
    facts = {
        "runs": [{"torch": b.version, "cuda": b.row.cuda, "source": b.row.source} for b in builds],
        "newest": newest or None,
    }
    return Report("compat", cards, worst, f"{cards}: {'; '.join(said)}", tuple(findings), facts=facts)


def _verdict(finding: Finding) -> Verdict:
    if finding.severity is Severity.ERROR:
        return Verdict.NO
    return Verdict.UNKNOWN if finding.confidence is Confidence.UNRESOLVED else Verdict.YES


def _order(build: Build) -> tuple[Version, str]:
    return Version(build.version), build.row.cuda


def _matches(version: str, wanted: str) -> bool:
    number = wanted.partition("+")[0]
    return not number or version == number or version.startswith(f"{number}.")


def _known(question: Question) -> list[Build]:
    tag = question.torch.partition("+")[2]
    return [
        Build(version, row)
        for row in torch_builds()
        if not tag or row.cuda == tag
        for version in row.torch
        if _matches(version, question.torch)
    ]


def _driver_runs(driver: str, tag: str) -> bool:
    """Whether a driver is new enough for a tag's CUDA; an unknown driver or tag excludes nothing."""
    row = toolkit(cuda_of_tag(tag))
    return not driver or row is None or _numbers(driver) >= _numbers(row.minimum_driver)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _running(question: Question, *, any_version: bool = False) -> list[Build]:
    asked = Question(question.cards, "", (), question.driver) if any_version else question
    return [
        build
        for build in _known(asked)
        if all(build.row.runs_on(card.major_minor) for card in question.cards)
        and _driver_runs(question.driver, build.row.cuda)
    ]


def _torch(question: Question) -> Iterator[Finding]:
    lowest = min(question.cards, key=lambda card: card.major_minor)
    running, known = _running(question), _known(question)
    names = " and ".join(dict.fromkeys(card.title for card in question.cards))
    if running:
        newest = max(running, key=_order)
        yield Finding(
            "compat-torch",
            Severity.ADVICE,
            f"torch {question.torch or 'builds'} on {names}: {', '.join(sorted({b.row.cuda for b in running}))} run",
            evidence=tuple(_lines(running)),
            cause=f"The lowest compute capability decides: {lowest.capability} ({lowest.sm}). A build runs when its "
            "architecture list holds code of the same major and no higher minor; the CUDA number that nvidia-smi shows "
            "is only the ceiling of the driver.",
            cure=f"The newest is {newest} (index https://download.pytorch.org/whl/{newest.row.cuda}){_ends(running)}.",
            sources=tuple(dict.fromkeys(_source(b.row) for b in running)),
            confidence=_CONFIDENCE[newest.row.status],
        )
        if not question.torch:
            return
    yield from _refused(question, known, running, lowest)


def _lines(builds: Sequence[Build]) -> Iterator[str]:
    tags: dict[str, list[Build]] = {}
    for build in builds:
        tags.setdefault(build.row.cuda, []).append(build)
    for tag, found in sorted(tags.items()):
        versions = sorted({b.version for b in found}, key=Version)
        minimum = toolkit(cuda_of_tag(tag))
        driver = f"; driver {minimum.minimum_driver} or newer" if minimum else ""
        yield f"{tag}: torch {', '.join(versions)}{driver}"


def _ends(builds: Sequence[Build]) -> str:
    last = {b.row.cuda: b.row.torch[-1] for b in builds if b.row.last}
    texts = [f"{tag} builds end with {version}" for tag, version in sorted(last.items())]
    return f"; {', '.join(texts)}" if texts else ""


def _source(row: TorchBuild) -> str:
    proven = "read from the wheel by audit; " if row.proven_by == "audit" else ""
    return f"{row.torch[0]}{'...' + row.torch[-1] if len(row.torch) > 1 else ''}+{row.cuda}: {proven}{row.source}"


def _refused(question: Question, known: list[Build], running: list[Build], lowest: Card) -> Iterator[Finding]:
    """Builds of the version asked for that do not run, or nothing known of it."""
    gone = [row for row in ended() if _matches(row.torch, question.torch) and question.torch]
    others = _running(question, any_version=True)
    instead = f"Take {max(others, key=_order)}, the newest known to run." if others else ""
    refused = [b for b in known if b.row.refuses(lowest.major_minor)]
    old_driver = [b for b in known if b not in refused and not _driver_runs(question.driver, b.row.cuda)]
    if gone and not running:
        yield Finding(
            "compat-torch-none",
            Severity.ERROR,
            f"no build of torch {question.torch} serves cards below {gone[0].below}",
            cause=f"{lowest.title} has compute capability {lowest.capability}.",
            cure=instead,
            sources=(gone[0].source,),
        )
    elif not known and (published := _published(question.torch)):
        yield Finding(
            "compat-torch-none",
            Severity.ERROR,
            f"torch {question.torch} was never published",
            cause=f"This release exists for {', '.join(published.tags)}.",
            cure=instead,
            sources=(published.source,),
        )
    elif not known or (not refused and not running and not old_driver):
        yield Finding(
            "compat-torch-unknown",
            Severity.ADVICE,
            f"nothing is known of torch {question.torch or 'for these cards'}",
            cause="No row of the tables names it; missing knowledge is no claim that it cannot run.",
            cure=f"Ask the wheel itself: envbuilder audit WHEEL. {instead}".strip(),
            confidence=Confidence.UNRESOLVED,
        )
    elif refused or old_driver:
        yield Finding(
            "compat-torch-none" if not running else "compat-torch-refused",
            Severity.ERROR if not running else Severity.ADVICE,
            f"{'not every' if running else 'no'} build of torch {question.torch} runs on {lowest.title} ({lowest.sm})",
            evidence=tuple(
                dict.fromkeys(
                    [f"{b} holds {b.row.shown_arches}" for b in refused]
                    + [f"{b} needs a newer driver than {question.driver}" for b in old_driver]
                )
            ),
            cause="Those builds hold no code for the card; the toolkit or the driver has nothing to do with it."
            if refused
            else "The driver is older than the CUDA release of these builds asks for.",
            cure=instead if not running else "",
            sources=tuple(dict.fromkeys(_source(b.row) for b in [*refused, *old_driver])),
        )


def _published(build: str) -> Release | None:
    """The release of a build that the table knows not to exist; None otherwise."""
    number, _, tag = build.partition("+")
    return release(number) if tag and exists(number, tag) is False else None


def _wants(question: Question) -> Iterator[Finding]:
    lowest = min(question.cards, key=lambda card: card.major_minor)
    for text in question.wants:
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            raise InputError(f"this is no requirement: {text!r}", cure="Write a name or NAME==VERSION.") from None
        name = canonicalize_name(wanted.name)
        version = next((s.version for s in wanted.specifier if s.operator == "=="), "")
        if name == "verl":
            yield _verl(version)
            continue
        row = floor(name, version)
        if row is not None and lowest.major_minor < row.major_minor:
            yield Finding(
                "compat-want",
                Severity.ERROR,
                f"{row.title} cannot run on {lowest.title}: it needs compute capability {row.minimum}, "
                f"the card has {lowest.capability}",
                cause="Below it there are no kernels in any version or build."
                if not row.versions
                else f"Versions {row.versions} hold no code for it.",
                cure=f"Take instead: {row.instead_en}.",
                sources=(row.source,),
                confidence=_CONFIDENCE[row.status],
            )
        elif row is not None or built_for(name, version):
            yield _fits(question, name, version)
        else:
            known = sorted({r.name for r in packages().floor})
            yield Finding(
                "compat-want",
                Severity.ADVICE,
                f"nothing is known of {name}",
                cause="No row of the tables names it; missing knowledge is no claim that it cannot run.",
                cure=f"Ask its binaries: envbuilder audit WHEEL. Known here: {', '.join(known)}.",
                confidence=Confidence.UNRESOLVED,
            )


def _fits(question: Question, name: str, version: str) -> Finding:
    """A package whose floor the card meets; with the torch it was built for."""
    row = floor(name, version)
    built = built_for(name, version)
    torch = question.torch.partition("+")[0]
    good = builds_for_torch(name, torch) if torch else []
    clash = bool(built and torch and not _matches(built.torch, torch))
    title = row.title if row else name
    return Finding(
        "compat-want",
        Severity.ERROR if clash else Severity.ADVICE,
        f"{name} {version} was built for torch {built.torch if built else ''}, not {torch}"
        if clash
        else f"{title}: nothing known forbids it on these cards",
        cause=f"It needs compute capability {row.minimum}." if row else "",
        cure=(f"For torch {torch}: {name} {', '.join(good)}." if good else "")
        or (f"{name} {version} belongs to torch {built.torch}." if built else ""),
        sources=tuple(r.source for r in (row, built) if r),
    )


def _verl(version: str) -> Finding:
    known = {row.version: row for row in verl_tables()}
    if version and version not in known:
        return Finding(
            "compat-verl",
            Severity.ADVICE,
            f"nothing is known of verl {version}",
            cure=f"Known: {', '.join(known)}.",
            confidence=Confidence.UNRESOLVED,
        )
    rows = [known[version]] if version else list(known.values())
    return Finding(
        "compat-verl",
        Severity.ADVICE,
        f"verl {', '.join(r.version for r in rows)}: configuration keys are known; lint checks overrides against them",
        evidence=tuple(f"verl {r.version}: {len(r.keys['main_ppo'])} keys of main_ppo" for r in rows),
        cure="Below compute capability 7.0 only the HF rollout runs, and verl 0.5.0 is the last known to have it.",
        sources=tuple(r.source for r in rows),
    )


def _host(question: Question) -> Iterator[Finding]:
    """Drivers and compilers for the lowest card."""
    lowest = min(question.cards, key=lambda card: card.major_minor)
    branch = last_branch(lowest.architecture)
    rows = [row for row in cuda_table().toolkit if row.compiles_for(lowest.major_minor)]
    evidence = [
        f"CUDA {', '.join(row.release)}: driver {row.minimum_driver} or newer"
        + (f", GCC {row.max_gcc} or older" if row.max_gcc else "")
        for row in rows
    ]
    cure = ""
    if branch:
        cure = f"Keep a driver of branch {branch.branch} at most: {branch.status}."
        if question.driver and _numbers(question.driver)[:1] > (branch.branch,):
            cure = f"Driver {question.driver} no longer knows {lowest.title}; go back to branch {branch.branch}."
    yield Finding(
        "compat-host",
        Severity.ADVICE,
        f"CUDA toolkits that compile for {lowest.sm}, and the driver for {lowest.title}",
        evidence=tuple(evidence),
        cure=cure,
        sources=tuple(dict.fromkeys([*(r.source for r in rows[-2:]), *([branch.source] if branch else [])])),
    )
