"""Every rule that the code names exists in the data with both languages, and every file rule is named by the code."""

import re
from pathlib import Path

import envbuilder.diagnose.lint as package
from envbuilder.diagnose.rulebook import rules

CODE = "\n".join(path.read_text() for path in sorted(Path(package.__file__).parent.rglob("*.py")))
FILE_RULES = {rule.id for rule in rules().values() if rule.kind == "file"}


def test_every_rule_named_in_the_code_exists() -> None:
    named = set(re.findall(r'Hit\(\s*"([a-z0-9-]+)"', CODE))
    assert named
    assert named <= FILE_RULES


def test_every_file_rule_is_used() -> None:
    assert {rule for rule in FILE_RULES if f'"{rule}"' not in CODE} == set()


def test_there_are_many_rules() -> None:
    assert len(FILE_RULES) >= 60
