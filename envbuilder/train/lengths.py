"""Prompt lengths in tokens, with the model's own tokenizer and chat template; no torch, no transformers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place


class PromptTokenizer:
    """The tokenizer of a model folder: ``tokenizer.json`` and the chat template of ``tokenizer_config.json``."""

    def __init__(self, folder: Path) -> None:
        """Raises InputError when a file is missing or is not what it should be."""
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
        from tokenizers import Tokenizer

        for name in ("tokenizer.json", "tokenizer_config.json"):
            if not (folder / name).is_file():
                raise InputError(f"the model folder has no {name}", place=Place(str(folder / name)))
        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
            config = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
            template = config.get("chat_template") or (folder / "chat_template.jinja").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise InputError(
                "the tokenizer has no chat template",
                place=Place(str(folder / "tokenizer_config.json"), field="chat_template"),
                cure="verl turns every prompt into text by it; use the instruct model, or add a template.",
            ) from None
        except Exception as error:
            # tokenizers raises a bare Exception for a file that is no tokenizer.
            raise InputError(f"the tokenizer cannot be read: {error}", place=Place(str(folder))) from error
        # A template is code out of a downloaded file: it runs in jinja's sandbox, as transformers runs it.
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise InputError(
                f"the chat template is not valid: {error}",
                place=Place(str(folder / "tokenizer_config.json"), field="chat_template"),
            ) from error
        self._special = {
            k: v["content"] if isinstance(v, dict) else v for k, v in config.items() if k.endswith("_token")
        }

    @property
    def vocabulary_size(self) -> int:
        """Tokens the tokenizer can give, added ones included."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def lengths(self, prompts: Sequence[list[dict[str, Any]]]) -> list[int]:
        """Tokens of each prompt (chat messages) with the template and the generation prompt, as verl counts them."""
        texts = [self._template.render(messages=p, add_generation_prompt=True, **self._special) for p in prompts]
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [len(e.ids) for e in encoded]


def _raise(message: str) -> None:
    raise InputError(f"the chat template refuses a prompt: {message}")


@dataclass
class LengthStatistics:
    """A histogram of lengths in tokens; constant in memory however many rows there are."""

    counts: dict[int, int]

    @staticmethod
    def empty() -> LengthStatistics:
        """No lengths yet."""
        return LengthStatistics({})

    def add(self, length: int) -> None:
        """Count one prompt."""
        self.counts[length] = self.counts.get(length, 0) + 1

    def summary(self, limit: int | None) -> dict[str, int]:
        """Least, median, 95th and 99th percentile, greatest, and how many exceed ``limit``."""
        total = sum(self.counts.values())
        if not total:
            return {}
        return {
            "min": min(self.counts),
            "p50": self._percentile(total, 0.50),
            "p95": self._percentile(total, 0.95),
            "p99": self._percentile(total, 0.99),
            "max": max(self.counts),
            **({"over_limit": sum(n for length, n in self.counts.items() if length > limit)} if limit else {}),
        }

    def _percentile(self, total: int, share: float) -> int:
        seen = 0
        for length in sorted(self.counts):
            seen += self.counts[length]
            if seen >= share * total:
                return length
        return max(self.counts)
