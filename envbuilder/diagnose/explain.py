"""``explain``: from a log to the cause and the cure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import IO

from envbuilder.diagnose.context import Known, card_patterns, fact_patterns, facts_of
from envbuilder.diagnose.engine import Candidate, patterns_of, weigh
from envbuilder.diagnose.logtext import Scanner, byte_chunks, text_chunks
from envbuilder.diagnose.masking import mask
from envbuilder.diagnose.model import Lang, Rule
from envbuilder.diagnose.patterns import Matcher, matchers
from envbuilder.diagnose.rulebook import finding, rules
from envbuilder.diagnose.unknown import UNKNOWN_FAILURES, summary
from envbuilder.errors import Place
from envbuilder.report import Finding, Report, Severity, Verdict


def explain_text(
    lines: Iterable[str], known: Known | None = None, *, subject: str = "log", lang: Lang = "en"
) -> Report:
    """Explain a log that is at hand as lines (what build and verify have when something failed).

    ``known`` says which card and stack it is about. The verdict is NO when a fault was found, UNKNOWN when the log
    shows a failure whose cause it does not tell, YES when nothing is wrong.
    """
    return _explain(text_chunks(lines), known or Known(), subject, lang)


def explain_streams(
    streams: Iterable[IO[bytes]], known: Known | None = None, *, subject: str, lang: Lang = "en"
) -> Report:
    """Explain logs of any size and encoding, read once and as one, in constant memory.

    Raises InputError for a binary file.
    """
    return _explain(chain.from_iterable(map(byte_chunks, streams)), known or Known(), subject, lang)


def _explain(chunks: Iterable[bytes], known: Known, subject: str, lang: Lang) -> Report:
    book = [rule for rule in rules().values() if rule.kind == "log"]
    facts_patterns = [pattern for fact in fact_patterns() for pattern in fact.patterns]
    found = matchers([*patterns_of(book), *facts_patterns, *card_patterns(), *UNKNOWN_FAILURES])
    scanner = Scanner(found)
    scanner.scan(chunks)
    facts = facts_of(found, known)
    findings = tuple(_finding(c, facts, subject, lang) for c in weigh(book, found, facts))
    verdict = _verdict(findings, book, scanner, found)
    stated = {name: list(map(mask, values)) for name, values in facts.items() if name not in ("builds", "tags")}
    return Report(
        command="explain",
        subject=mask(subject),
        verdict=verdict,
        summary=summary(lang, verdict, findings, scanner, found),
        findings=findings,
        facts={"lines": scanner.lines, "read": stated},
    )


def _finding(candidate: Candidate, facts: Mapping[str, tuple[str, ...]], subject: str, lang: Lang) -> Finding:
    slots = {name: values[0] for name, values in facts.items()} | candidate.slots()
    slots = {name: mask(value) for name, value in slots.items()}
    ordered = sorted(candidate.matches, key=lambda m: m.line)
    evidence = tuple(dict.fromkeys(mask(match.text) for match in ordered))[:4]
    place = Place(mask(subject), candidate.matches[0].line)
    return finding(candidate.rule, slots, lang, place, evidence)


def _verdict(
    findings: tuple[Finding, ...], book: list[Rule], scanner: Scanner, found: Mapping[str, Matcher]
) -> Verdict:
    undecided = {rule.id for rule in book if not rule.decides}
    if any(f.severity is not Severity.ADVICE and f.rule not in undecided for f in findings):
        return Verdict.NO
    failed = any(found[pattern].found for pattern in UNKNOWN_FAILURES)
    if scanner.empty or any(f.rule in undecided for f in findings) or (failed and not findings):
        return Verdict.UNKNOWN
    return Verdict.YES
