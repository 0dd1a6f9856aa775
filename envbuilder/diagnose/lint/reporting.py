"""The report of a lint run."""

from __future__ import annotations

from envbuilder.diagnose.lint.engine import Linted, format_list
from envbuilder.diagnose.model import Lang
from envbuilder.report import Report, Severity, Verdict


def report_of(done: Linted, subject: str, lang: Lang = "en") -> Report:
    """The report: no for a fault, yes for none (advice aside), not enough to tell where no file was understood."""
    findings = done.findings
    cards = list(dict.fromkeys(card.title for result in done.results for card in result.cards))
    fixable = sum(result.fixable for result in done.results)
    faults = [f for f in findings if f.severity is not Severity.ADVICE]
    if faults:
        verdict = Verdict.NO
    elif done.results:
        verdict = Verdict.YES
    else:
        verdict = Verdict.UNKNOWN
    summary = _summary(done, len(faults), len(findings) - len(faults), fixable, cards, lang)
    facts = {
        "files": [{"file": r.file, "format": r.kind, "cards": [c.title for c in r.cards]} for r in done.results],
        "not understood": done.unknown,
        "fixable": fixable,
    }
    return Report("lint", subject, verdict, summary, findings, facts=facts)


def _summary(done: Linted, faults: int, advice: int, fixable: int, cards: list[str], lang: Lang) -> str:
    if not done.results:
        names = ", ".join(done.unknown)
        if lang == "zh":
            known = f"认识的格式：{format_list()}。日志请用 envbuilder explain。"
            return f"没有 lint 认识的格式：{names or '（没有文件）'}。{known}"
        return (
            f"no format that lint knows: {names or 'no file'}. It knows {format_list()}. For a log: envbuilder explain."
        )
    files = len(done.results)
    if lang == "zh":
        parts = [f"{files} 个文件，{faults} 处问题，{advice} 条建议；按 {'、'.join(cards)} 判断"]
        parts += [f"{fixable} 处可用 --fix 安全修复"] if fixable else []
        parts += [f"不认识：{', '.join(done.unknown)}"] if done.unknown else []
        return "；".join(parts)
    parts = [
        f"{files} file{'s' * (files != 1)}, {faults} fault{'s' * (faults != 1)}, {advice} advice",
        f"judged for {', '.join(cards)}",
    ]
    parts += [f"{fixable} can be mended with --fix"] if fixable else []
    parts += [f"not understood: {', '.join(done.unknown)}"] if done.unknown else []
    return "; ".join(parts)
