"""The rules: they load, ids are unique, texts are complete in both languages, every slot can be filled."""

import re

import pytest

from envbuilder.diagnose.rulebook import fill, finding, rules

RULES = list(rules().values())


@pytest.mark.parametrize("rule", RULES, ids=[r.id for r in RULES])
def test_both_languages_have_the_same_slots(rule) -> None:  # type: ignore[no-untyped-def]
    for text in (rule.title, rule.cause, rule.cure, *rule.not_help, *rule.checks):
        assert set(re.findall(r"\{([a-z][a-z0-9_]*)\}", text.en)) == set(re.findall(r"\{([a-z][a-z0-9_]*)\}", text.zh))
        # A check may be nothing but a command.
        assert text in rule.checks or re.search(r"[\u4e00-\u9fff]", text.zh), f"not Chinese: {text.zh}"


def test_an_optional_part_goes_when_its_slot_is_empty() -> None:
    assert fill("a[[ with {b}]].", {}, "en") == "a."
    assert fill("a[[ with {b}]].", {"b": "c"}, "en") == "a with c."
    assert fill("a {b}", {}, "en") == "a (not known)"


def test_a_finding_is_filled_in_the_language_asked_for() -> None:
    rule = rules()["cudnn-older-on-library-path"]
    english = finding(rule, {"built": "8, 3, 2", "found": "8, 0, 3"})
    assert "(8, 3, 2)" in english.cause
    assert "LD_LIBRARY_PATH" in english.cure
    assert "优先" in finding(rule, {}, "zh").cause or "先于" in finding(rule, {}, "zh").cause
