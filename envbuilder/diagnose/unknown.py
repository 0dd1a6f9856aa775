"""What explain says in one sentence, above all where no rule knows the failure."""

from __future__ import annotations

from collections.abc import Mapping

from envbuilder.diagnose.logtext import Scanner
from envbuilder.diagnose.masking import mask
from envbuilder.diagnose.model import Lang
from envbuilder.diagnose.patterns import Matcher
from envbuilder.report import Finding, Verdict

# Signs that something failed, whatever it was.
UNKNOWN_FAILURES = (
    r"^Traceback \(most recent call last\):",
    r"^\w+(?:\.\w+)*(?:Error|Exception): .{4}",
    r"\(core dumped\)",
    r"^Segmentation fault",
    r"did not complete successfully: exit code: [1-9]",
    r"error: subprocess-exited-with-error",
    r"^(?:#\d+ )?ERROR: .{4}",
    r"^fatal: .{4}",
    r"\bfatal error: .{4}",
    r"^\S+\.(?:cuh?|c|cc|cpp|cxx|hp*|hxx)(?:\(\d+\):|:\d+:\d+:) error: .{4}",
    r"^E: .{4}",
    r"^nvcc (?:fatal|error) *: .{4}",
    r"^make(?:\[\d+\])?: \*\*\* ",
    r"^Error response from daemon: ",
    r"\bNVRM: Xid\b",
    r"exited with code [1-9]\d*\b",
)

_TEXTS: dict[str, dict[Lang, str]] = {
    "fault": {"en": "{n} found: {titles}.", "zh": "找到 {n} 个问题：{titles}。"},
    "undecided": {
        "en": "not enough in this log to tell the cause; the checks above would decide.",
        "zh": "not enough：仅凭这份日志不足以判断原因；上面列出的检查可以判断。",
    },
    "unknown": {
        "en": "the log shows a failure that no rule knows: {line} Give more of the log, from the first error on "
        "(not only the last lines), and say the card and stack with --gpu or --stack.",
        "zh": "not enough：日志中有一处失败，但没有规则认识它：{line} 请给出从第一个错误开始的更多日志"
        "（不只是最后几行），并用 --gpu 或 --stack 说明显卡与环境。",
    },
    "empty": {"en": "the log is empty: not enough to tell.", "zh": "日志为空：not enough，无法判断。"},
    "fine": {"en": "nothing wrong found in {lines} lines.", "zh": "在 {lines} 行中没有发现问题。"},
    "advice": {"en": "no fault, only advice.", "zh": "没有故障，只有建议。"},
}


def summary(
    lang: Lang, verdict: Verdict, findings: tuple[Finding, ...], scanner: Scanner, found: Mapping[str, Matcher]
) -> str:
    """The report in one sentence."""
    if verdict is Verdict.NO:
        titles = "; ".join(f.title for f in findings)
        return _TEXTS["fault"][lang].format(n=len(findings), titles=titles)
    if verdict is Verdict.YES:
        return _TEXTS["advice" if findings else "fine"][lang].format(lines=scanner.lines)
    if scanner.empty:
        return _TEXTS["empty"][lang]
    if findings:
        return _TEXTS["undecided"][lang]
    seen = [m for p in UNKNOWN_FAILURES for m in found[p].found if not m.text.startswith("Traceback")]
    line = f"“{mask(max(seen, key=lambda m: m.line).text)}”." if seen else ""
    return _TEXTS["unknown"][lang].format(line=line)
