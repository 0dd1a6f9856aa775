"""Every case of ``tests/data/cases`` through its command: the cause must be said, the wrong advice must not."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from envbuilder.cli import group
from envbuilder.errors import EnvbuilderError

CASES = Path(__file__).parents[2] / "data" / "cases"
# Faults whose right answer is "not enough to tell" are written as exit 2 in the cases; ours is 3.
EXIT = {0: 0, 1: 1, 2: 3}
# The one place where the commands of the cases become ours.
SPELLING = {"suggest": ["compat"], "lint --target": ["lint", "--gpu"]}


@dataclass
class Answer:
    exit: int
    said: str


def cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (CASES / "cases.jsonl").read_text().splitlines()]


def argv(command: str) -> list[str]:
    """The arguments of our command line for the command of a case."""
    words = shlex.split(command)[1:]
    for spelling, ours in SPELLING.items():
        if words[: len(spelling.split())] == spelling.split():
            words = ours + words[len(spelling.split()) :]
    return words


def ask(words: list[str]) -> Answer:
    """Run the command in the folder of the cases."""
    result = CliRunner().invoke(group, words, prog_name="envbuilder", standalone_mode=False)
    if isinstance(result.exception, EnvbuilderError):
        error = result.exception
        return Answer(error.exit_code, f"{error.place} {error.message} {error.cure} {error.detail}")
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    code = result.return_value if isinstance(result.return_value, int) else result.exit_code
    return Answer(code, result.output)


def misses(case: dict[str, Any], answer: Answer) -> list[str]:
    """What the answer lacks or says wrongly."""
    accept, said = case["accept"], " ".join(answer.said.lower().split())
    wrong = [] if answer.exit == EXIT[accept["exit"]] else [f"exit {answer.exit}, wanted {EXIT[accept['exit']]}"]
    for wanted in accept["must_say"]:
        if not any(part.lower() in said for part in wanted.split("|")):
            wrong.append(f"does not say {wanted!r}")
    return wrong


def forbidden(case: dict[str, Any], answer: Answer) -> list[str]:
    said = " ".join(answer.said.lower().split())
    return [text for text in case["accept"]["must_not_say"] if text.lower() in said]


def test_the_public_cases_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    missed, advice = [], []
    for case in cases():
        answer = ask(argv(case["accept"]["cmd"]))
        if wrong := misses(case, answer):
            missed.append(f"{case['id']}: {'; '.join(wrong)}")
        if bad := forbidden(case, answer):
            advice.append(f"{case['id']}: says {bad}")
    asked = len(cases())
    print(f"{asked} cases asked, {len(missed)} missed, {len(advice)} with forbidden advice", *missed, *advice, sep="\n")
    assert asked == 124
    assert not advice, "\n".join(advice)
    assert len(missed) <= 0.05 * asked, "\n".join(missed)


def test_every_input_goes_through_explain_without_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CASES)
    for path in sorted((CASES / "inputs").iterdir()):
        for lang in ("en", "zh"):
            answer = ask(["explain", str(path.relative_to(CASES)), "--lang", lang])
            assert answer.exit in (0, 1, 3), path


def test_the_chinese_answers_name_the_same_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an answer must say is mostly versions, flags and names of files: those stand in both languages."""
    monkeypatch.chdir(CASES)
    for case in cases():
        words = argv(case["accept"]["cmd"])
        if words[0] != "explain":
            continue
        said = ask([*words, "--lang", "zh"]).said.lower()
        for wanted in case["accept"]["must_say"]:
            exact = [part for part in wanted.split("|") if re.search(r"[\d_=-]|[A-Z]{3}", part)]
            assert not exact or any(part.lower() in said for part in exact), f"{case['id']}: {wanted}"
