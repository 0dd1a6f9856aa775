"""Secrets and personal paths are masked in everything that is printed or saved."""

from __future__ import annotations

import re

_RULES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), "<key>"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s/@'\"]+@", re.IGNORECASE), r"\1<secret>@"),
    (
        re.compile(
            r"([\w-]*(?:token|password|passwd|pwd|secret|api[_-]?key|access[_-]?key|credentials?)(?![a-z])[\w-]*"
            r"[\"']?\s*(?:=(?!=)|:)\s*[\"']?)(?!<)[^\s\"',;&)]+",
            re.IGNORECASE,
        ),
        r"\1<secret>",
    ),
    (re.compile(r"(--?(?:token|password|passwd|secret|api-key)\s+)\S+", re.IGNORECASE), r"\1<secret>"),
    (
        re.compile(r"(Authorization\s*:\s*)(?:\w+\s+)?\S+|(\b(?:Bearer|Basic)\s+)[\w.~+/=-]{8,}", re.IGNORECASE),
        r"\1\2<secret>",
    ),
    (re.compile(r"\b(?:hf|ghp|gho|ghs|ghu|glpat|npm|pypi|sk|xox[abprs]|dckr_pat)[_-][\w-]{16,}"), "<secret>"),
    (re.compile(r"\bgithub_pat_\w{20,}"), "<secret>"),
    (re.compile(r"\bA(?:KIA|SIA)[0-9A-Z]{16}\b"), "<secret>"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), "<secret>"),
    (
        re.compile(r"([?&](?:sig|signature|token|x-amz-signature|x-amz-credential|key)=)[^&\s]+", re.IGNORECASE),
        r"\1<secret>",
    ),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b"), "<e-mail>"),
    (re.compile(r"(/(?:home|Users|data/home|mnt/home|export/home|users)/)(?!<)[^/\s:'\"]+"), r"\1<user>"),
    (re.compile(r"([A-Za-z]:\\+Users\\+)(?!<)[^\\\s:'\"]+"), r"\1<user>"),
)


def mask(text: str) -> str:
    """``text`` with tokens, passwords, keys, e-mail addresses and the names of home folders replaced."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
