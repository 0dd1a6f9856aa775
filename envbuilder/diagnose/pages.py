"""The pages of the rules, generated from the data: a page a rule, English and Chinese. ``make docs`` writes them.

Run: python -m envbuilder.diagnose.pages FOLDER
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from envbuilder.diagnose.model import LANGS, Lang, Rule
from envbuilder.diagnose.rulebook import Subject, subjects
from envbuilder.files import write_text

_LABELS: dict[Lang, dict[str, str]] = {
    "en": {
        "cause": "Cause",
        "cure": "Cure",
        "checks": "Checks that decide",
        "not_help": "What does not help",
        "lang": "English",
    },
    "zh": {
        "cause": "原因",
        "cure": "解决办法",
        "checks": "用来判断的检查",
        "not_help": "无济于事的做法",
        "lang": "中文",
    },
}
_KIND = {"log": "`envbuilder explain`, in a log", "file": "`envbuilder lint`, in a file"}


def pages() -> dict[str, str]:
    """Every page by its file name; ``README.md`` lists them by subject."""
    made = {f"{rule.id}.md": page(rule, subject) for subject in subjects() for rule in subject.rules}
    made["README.md"] = _index()
    return made


def page(rule: Rule, subject: Subject) -> str:
    """The page of one rule. Slots stand as names in angle brackets: their values come out of the log or file."""
    lines = [f"# {_slots(rule.title.en)}", "", _slots(rule.title.zh), ""]
    lines += [
        f"`{rule.id}` · {subject.title.en} · found by {_KIND[rule.kind]}",
        "",
        f"Severity: {rule.severity.value}. Confidence: {rule.confidence.value}.",
        "",
    ]
    for lang in LANGS:
        label = _LABELS[lang]
        lines += [f"## {label['lang']}", ""]
        lines += [f"**{label['cause']}** {_slots(rule.cause.get(lang))}", ""]
        lines += [f"**{label['cure']}** {_slots(rule.cure.get(lang))}", ""]
        for name, texts in (("checks", rule.checks), ("not_help", rule.not_help)):
            if texts:
                lines += [f"**{label[name]}**", "", *(f"* {_slots(text.get(lang))}" for text in texts), ""]
    if rule.needs:
        lines += ["## Recognised by", "", *_patterns(rule), ""]
    lines += ["## Sources", "", *(f"* {source}" for source in rule.sources), ""]
    return "\n".join(lines)


def _patterns(rule: Rule) -> list[str]:
    lines = []
    for word, patterns in (("needs", rule.needs), ("supported by", rule.helps), ("ruled out by", rule.against)):
        lines += [f"* {word} {_code(pattern)}" for pattern in patterns]
    lines += [f"* when {_code(condition)}" for condition in rule.when]
    return lines


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if fence == "``" else f"{fence}{text}{fence}"


def _slots(text: str) -> str:
    plain = text.replace("[[", "").replace("]]", "")
    return re.sub(r"\{([a-z][a-z0-9_]*)\}", r"‹\1›", plain).strip()


def _index() -> str:
    count = sum(len(subject.rules) for subject in subjects())
    lines = [
        "# The rules",
        "",
        f"{count} rules of `envbuilder explain` and `envbuilder lint`, generated from `envbuilder/diagnose/rules`.",
    ]
    for subject in subjects():
        lines += ["", f"## {subject.title.en} / {subject.title.zh}", ""]
        lines += [f"* [{rule.id}]({rule.id}.md): {_slots(rule.title.en)}" for rule in subject.rules]
    return "\n".join([*lines, ""])


def write_pages(folder: Path) -> None:
    """Write every page into ``folder`` and remove pages of rules that are no more."""
    made = pages()
    for name, text in made.items():
        path = folder / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text(path, text)
    for path in folder.glob("*.md"):
        if path.name not in made:
            path.unlink()


if __name__ == "__main__":
    write_pages(Path(sys.argv[1]))
