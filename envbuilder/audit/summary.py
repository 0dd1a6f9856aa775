"""Verdicts into a report: one summary with the guilty files, tables and findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envbuilder.audit.cards import Card, known_cards, newest
from envbuilder.audit.collect import Collection
from envbuilder.audit.judge import Answer, FileVerdict, PackageVerdict, judge, judge_package
from envbuilder.audit.native import glibc_floor
from envbuilder.errors import Place
from envbuilder.report.model import Confidence, Finding, Report, Severity, Table, Verdict

_NAMED_FILES = 6


def judge_all(collection: Collection, card: Card) -> list[PackageVerdict]:
    """A verdict for every package of the target that holds anything; files of no package are judged one by one."""
    found = []
    for package in collection.packages:
        verdicts = [judge(binary, card) for binary in package.binaries]
        if package.name:
            found.append(judge_package(package.name, package.version, verdicts, card, collection.cuda))
        else:
            variants = [v for v in verdicts if v.rule and v.rule.variants]
            if variants:
                found.append(judge_package(variants[0].path, "", variants, card, collection.cuda))
            found += [judge_package(v.path, "", [v], card) for v in verdicts if v not in variants]
    return found


def overall(verdicts: Sequence[PackageVerdict], collection: Collection) -> Verdict:
    """One answer for all: no when a needed package does not run, not enough to tell when one is unknown."""
    telling = [v for v in verdicts if v.answer is not Answer.NO_CODE]
    guilty = [v for v in telling if v.answer is Answer.NO and not v.harmless]
    if guilty or (telling and all(v.answer is Answer.NO for v in telling)):
        return Verdict.NO
    if collection.nothing or collection.unseen or any(v.answer is Answer.UNKNOWN and not v.harmless for v in telling):
        return Verdict.UNKNOWN
    return Verdict.YES


def report_for(collections: Sequence[Collection], card: Card, findings: Sequence[Finding] = ()) -> Report:
    """The report for one card."""
    rows: list[tuple[str, ...]] = []
    faults: list[Finding] = []
    targets: list[dict[str, Any]] = []
    verdicts: list[Verdict] = []
    notes: list[str] = []
    everything: list[PackageVerdict] = []
    for collection in collections:
        packages = judge_all(collection, card)
        everything += packages
        answer = overall(packages, collection)
        verdicts.append(answer)
        shown = [p for p in packages if p.answer is not Answer.NO_CODE] or packages[:_NAMED_FILES]
        shown = [] if collection.nothing else shown
        rows += [(p.title or collection.subject, _said(p), _how(p), p.driver or "") for p in shown]
        faults += [_fault(p, collection) for p in packages if _is_fault(p, answer)]
        faults += _unseen(collection)
        notes += [note for note in (collection.note, _nothing([collection])) if note]
        targets.append(_facts(collection, packages, answer))
    verdict = worst(verdicts)
    if any(f.severity is Severity.ERROR for f in findings):
        verdict = Verdict.NO
    driver = newest(p.driver for p in everything if p.driver and p.answer.runs)
    nothing = all(c.nothing for c in collections)
    summary = [] if nothing else [_summary(verdict, everything, findings, card, driver)]
    return Report(
        command="audit",
        subject=", ".join(c.subject for c in collections),
        verdict=verdict,
        summary="; ".join([*summary, *notes]),
        findings=(*faults, *findings),
        tables=(Table("", ("package", "answer", "how", "driver"), tuple(rows)),) if rows else (),
        facts={
            "card": {"name": card.title, "sm": card.arch.sm, "last_driver_branch": card.last_branch},
            "driver": driver,
            "targets": targets,
        },
    )


def report_for_all(collections: Sequence[Collection], findings: Sequence[Finding] = ()) -> Report:
    """The report without a card: what every known card gets."""
    rows: list[tuple[str, ...]] = []
    facts: list[dict[str, Any]] = []
    able = []
    anything = False
    for card in known_cards():
        packages = [p for c in collections for p in judge_all(c, card)]
        telling = [p for p in packages if p.answer is not Answer.NO_CODE]
        anything = anything or bool(telling)
        verdict = worst([overall(judge_all(c, card), c) for c in collections])
        against = [p for p in telling if p.answer in (Answer.NO, Answer.UNKNOWN) and not p.harmless]
        by_jit = [p for p in telling if p.answer is Answer.JIT]
        named = ", ".join(p.title for p in against[:_NAMED_FILES]) + (" ..." if len(against) > _NAMED_FILES else "")
        how = named or (f"by JIT: {', '.join(p.title for p in by_jit[:_NAMED_FILES])}" if by_jit else "")
        if len(telling) == 1:
            how = _how(telling[0])
        answer = telling[0].answer.value if len(telling) == 1 else verdict.value
        driver = newest(p.driver for p in telling if p.driver and p.answer.runs) if verdict is Verdict.YES else None
        rows.append((card.arch.sm, card.title, answer, how, driver or ""))
        facts.append(
            {"sm": card.arch.sm, "verdict": verdict.value, "driver": driver, "against": [p.title for p in against]}
        )
        able += [card.arch.sm] if verdict is Verdict.YES else []
    unseen = any(c.unseen for c in collections)
    if nothing := _nothing(collections):
        verdict, summary = Verdict.UNKNOWN, nothing
    elif not anything and not unseen:
        verdict, summary = Verdict.YES, "there is no device code in it: any card will do"
    elif able:
        verdict, summary = Verdict.YES, f"it runs on {', '.join(able)}"
    else:
        verdict = Verdict.UNKNOWN if any(r[2] in ("unknown", Verdict.UNKNOWN.value) for r in rows) else Verdict.NO
        summary = "it runs on none of the known cards" if verdict is Verdict.NO else "it cannot be told where it runs"
    return Report(
        command="audit",
        subject=", ".join(c.subject for c in collections),
        verdict=verdict,
        summary=summary,
        findings=(*[f for c in collections for f in _unseen(c)], *findings),
        tables=(Table("", ("", "cards", "answer", "how, or what stands against it", "driver"), tuple(rows)),)
        if anything
        else (),
        facts={"cards": facts, "targets": [_contents(c) for c in collections]},
    )


def _nothing(collections: Sequence[Collection]) -> str:
    """What is said when there is nothing to judge in any of the targets."""
    if all(c.nothing for c in collections):
        return "nothing to judge: " + "; ".join(f"{c.subject}: {c.nothing}" for c in collections)
    return ""


def worst(verdicts: Sequence[Verdict]) -> Verdict:
    """No before not enough to tell before yes."""
    order = (Verdict.YES, Verdict.UNKNOWN, Verdict.NO)
    return max(verdicts, key=order.index, default=Verdict.UNKNOWN)


def _said(package: PackageVerdict) -> str:
    return "no (not needed)" if package.answer is Answer.NO and package.harmless else package.answer.value


def _how(package: PackageVerdict) -> str:
    if package.note:
        return package.note
    if package.answer in (Answer.NO, Answer.UNKNOWN):
        telling = [f for f in package.files if f.answer is package.answer]
        return "; ".join(
            f"{f.path.rsplit('/', 1)[-1]}: {f.sentence()}" if len(package.files) > 1 else f.sentence()
            for f in telling[:3]
        ) + (f" and {len(telling) - 3} more files" if len(telling) > 3 else "")
    sass = sorted({a for f in package.files if f.answer.runs for a in f.sass})
    ptx = sorted({i for f in package.files if f.answer.runs for i in f.ptx})
    units = sum(f.units for f in package.files if f.answer.runs)
    running = sum(f.running for f in package.files if f.answer.runs)
    parts = [", ".join(a.sm for a in sass)] if sass else []
    parts += [", ".join(str(i) for i in ptx)] if ptx else []
    parts += [f"{running} of {units} code units"] if units else []
    idle = [f.path.rsplit("/", 1)[-1] for f in package.files if f.answer is Answer.NO]
    parts += [f"not needed and without code for it: {', '.join(idle[:3])}"] if idle and package.harmless else []
    notes = {f.note for f in package.files if f.note and f.answer.runs and f.units}
    return "; ".join(parts + sorted(notes))


def _is_fault(package: PackageVerdict, answer: Verdict) -> bool:
    return package.answer is Answer.NO and (not package.harmless or answer is Verdict.NO)


def _fault(package: PackageVerdict, collection: Collection) -> Finding:
    sm = package.card.arch.sm
    guilty = package.guilty
    evidence = tuple(f"{f.path}: {f.sentence()}" for f in guilty[:_NAMED_FILES])
    if len(guilty) > _NAMED_FILES:
        evidence += (f"and {len(guilty) - _NAMED_FILES} more files",)
    if package.harmless:
        return Finding(
            rule="no-code-for-card",
            severity=Severity.ADVICE,
            title=f"{package.title} has no code for {sm}, and is not needed",
            place=Place(collection.subject),
            cause=package.note,
            evidence=evidence,
            confidence=Confidence.MEASURED,
        )
    from envbuilder.audit.ends import last_with

    known = last_with(package.name, package.card.arch)
    missing = any(f.running for f in guilty)
    return Finding(
        rule="no-code-for-card",
        severity=Severity.ERROR,
        title=f"{package.title} cannot run on {package.card}",
        place=Place(collection.subject),
        cause=f"{'Some code units hold' if missing else 'It holds'} neither SASS that {sm} executes nor PTX that its "
        'driver could compile for it: calls into it end in "no kernel image is available for execution on the device".',
        cure=known.cure if known else f"Take a build that holds {sm} code, or build it from source for {sm}.",
        evidence=evidence,
        sources=(known.source,) if known else (),
        confidence=Confidence.MEASURED,
    )


def _unseen(collection: Collection) -> list[Finding]:
    if not collection.unseen:
        return []
    lines = collection.unseen
    more = (f"and {len(lines) - _NAMED_FILES} more",) if len(lines) > _NAMED_FILES else ()
    return [
        Finding(
            rule="not-seen",
            severity=Severity.WARNING,
            title="not everything could be looked at",
            place=Place(collection.subject),
            evidence=(*lines[:_NAMED_FILES], *more),
            confidence=Confidence.MEASURED,
        )
    ]


def _summary(
    verdict: Verdict,
    packages: Sequence[PackageVerdict],
    findings: Sequence[Finding],
    card: Card,
    driver: str | None,
) -> str:
    telling = [p for p in packages if p.answer is not Answer.NO_CODE]
    guilty = [p for p in telling if p.answer is Answer.NO and (not p.harmless or len(telling) == 1)]
    if verdict is Verdict.NO and guilty:
        names = ", ".join(
            f"{p.title} ({', '.join(f.path.rsplit('/', 1)[-1] for f in p.guilty[:3])}"
            f"{' ...' if len(p.guilty) > 3 else ''})"
            for p in guilty
        )
        return f"it cannot run on {card}: {names}"
    if verdict is Verdict.NO:
        errors = [f.title for f in findings if f.severity is Severity.ERROR]
        return f"faults beside the kernels: {'; '.join(errors[:3])}" if errors else f"nothing in it is for {card}"
    if verdict is Verdict.UNKNOWN:
        unknown = [p.title for p in telling if p.answer is Answer.UNKNOWN]
        what = f": {', '.join(unknown[:_NAMED_FILES])}" if unknown else ""
        return f"whether all of it runs on {card} cannot be told from what was seen{what}"
    if not telling:
        return "there is no device code in it: any card will do"
    jit = [p.title for p in telling if p.answer is Answer.JIT]
    how = f", {', '.join(jit[:3])} by JIT" if jit else ""
    needs = f"; it needs driver {driver} or newer" if driver else ""
    return f"its CUDA code runs on {card}{how}{needs}"


def _facts(collection: Collection, packages: Sequence[PackageVerdict], answer: Verdict) -> dict[str, Any]:
    return {
        **_contents(collection),
        "verdict": answer.value,
        "packages": [
            {
                "name": p.name,
                "version": p.version,
                "answer": p.answer.value,
                "harmless": p.harmless,
                "note": p.note,
                "driver": p.driver,
                "files": [_file_facts(f) for f in p.files if f.answer is not Answer.NO_CODE],
            }
            for p in packages
            if p.answer is not Answer.NO_CODE or len(packages) == 1
        ],
    }


def _file_facts(file: FileVerdict) -> dict[str, Any]:
    return {
        "path": file.path,
        "answer": file.answer.value,
        "sass": [a.sm for a in file.sass],
        "ptx": [{"arch": i.arch.compute, "isa": f"{i.isa[0]}.{i.isa[1]}"} for i in file.ptx],
        "units": file.units,
        "running": file.running,
        "holds": list(file.holds),
        "driver": file.driver,
        "rule": file.rule.id if file.rule else None,
        "note": file.note,
    }


def _contents(collection: Collection) -> dict[str, Any]:
    """What is in a target whatever the card: images by kind for every file with device code."""
    return {
        "subject": collection.subject,
        "kind": collection.kind,
        "note": collection.note,
        "unseen": list(collection.unseen),
        "glibc": {"needed": glibc_floor(collection.binaries)[0], "base": collection.glibc},
        "images": {
            b.path: {str(image): count for image, count in sorted(b.images().items())}
            for b in collection.binaries
            if b.has_code
        },
    }
