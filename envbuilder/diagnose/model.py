"""The rule: what lint and explain know of one fault. The data is ``rules/**/*.toml``, one file a subject.

A rule of kind ``log`` is recognised by its patterns and conditions (``engine.py``). A rule of kind ``file`` is
recognised by code in lint, which names the rule by its id and hands over the slots of its texts.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from envbuilder.report import Confidence, Severity
from envbuilder.stack.fields import Strict

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")
RuleId = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Text(Strict):
    """One text in both languages. ``{name}`` is a slot; ``[[...]]`` is dropped when a slot in it has no value."""

    en: str = Field(min_length=2)
    zh: str = Field(min_length=2)

    def get(self, lang: Lang) -> str:
        """The text in ``lang``."""
        return self.en if lang == "en" else self.zh


class Rule(Strict):
    """One fault: how it is recognised, why it happens, what cures it, what does not, and where that is known from."""

    id: RuleId
    kind: Literal["log", "file"]
    severity: Severity = Severity.ERROR
    confidence: Confidence = Confidence.SOURCED
    title: Text
    cause: Text
    cure: Text
    not_help: tuple[Text, ...] = ()
    sources: tuple[str, ...] = Field(min_length=1)

    family: str = Field("", description="Of the rules of one family only the best supported one is reported.")
    decides: bool = Field(True, description="False: the log does not tell the cause; `checks` would.")
    symptom: bool = Field(False, description="What any of several faults ends in: said only when no cause is found.")
    weight: int = Field(0, description="Added to the evidence score.")
    needs: tuple[str, ...] = Field((), description="Patterns that must all be in the log.")
    helps: tuple[str, ...] = Field((), description="Patterns that support the rule.")
    against: tuple[str, ...] = Field((), description="Patterns any of which rules it out.")
    when: tuple[str, ...] = Field((), description="Conditions over facts of log, card and stack: `capability < 7.0`.")
    checks: tuple[Text, ...] = Field((), description="What to look at to decide.")

    @field_validator("needs", "helps", "against")
    @classmethod
    def _compiles(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"not a regular expression: {pattern!r}: {error}") from None
        return patterns

    @model_validator(mode="after")
    def _coherent(self) -> Rule:
        if self.kind == "file" and (self.needs or self.helps or self.against or self.when):
            raise ValueError("a file rule is recognised by lint's code and has no patterns")
        if self.kind == "log" and not self.needs:
            raise ValueError("a log rule needs at least one pattern")
        if not self.decides and not self.checks:
            raise ValueError("a rule that does not decide lists the checks that would")
        return self


class RuleFile(Strict):
    """One file of rules."""

    schema_: Literal[1] = Field(alias="schema")
    subject: Text
    rule: tuple[Rule, ...]
