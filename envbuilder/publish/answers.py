"""What registries answer, as far as it concerns people: reasons, and a clock that is off."""

from __future__ import annotations

import contextlib
import json
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

import requests

from envbuilder.errors import IntegrityError

_CHUNK = 64 * 1024
# An error's document is a few lines; what goes on longer is none.
_REASONS_LIMIT = 64 * 1024
# Tokens are good for minutes; a clock that is off by less does no harm.
_CLOCK_SECONDS = 300


def body_of(answer: requests.Response, limit: int) -> bytes:
    """The bytes of a streamed answer. Raises IntegrityError beyond ``limit`` bytes."""
    body = b""
    with answer:
        for chunk in answer.iter_content(_CHUNK):
            body += chunk
            if len(body) > limit:
                raise IntegrityError(
                    f"{answer.url.split('?')[0]} sends more than {limit} bytes",
                    cure="Nothing of it was kept. Ask whoever runs the registry.",
                )
    return body


def finish(answer: requests.Response) -> None:
    """Read the little that is left of an answer, so that its connection serves the next request."""
    with contextlib.suppress(IntegrityError, requests.RequestException):
        body_of(answer, _REASONS_LIMIT)


def reasons(answer: requests.Response) -> str:
    """What the registry says went wrong, one line an error; empty when it is nothing of the protocol's form."""
    try:
        errors = json.loads(body_of(answer, _REASONS_LIMIT))["errors"]
        return "\n".join(f"{e.get('code', '')}: {e.get('message', '')}" for e in errors[:5])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ""
    except (IntegrityError, requests.RequestException):
        return ""


def clock_off(answer: requests.Response) -> list[str]:
    """A line when this host's clock and that of ``answer`` are far apart, which makes good tokens look bad."""
    try:
        there = parsedate_to_datetime(answer.headers["Date"])
    except (LookupError, ValueError, TypeError):
        return []
    here = datetime.now(tz=timezone.utc)
    if there.tzinfo is None or abs((here - there).total_seconds()) < _CLOCK_SECONDS:
        return []
    return [f"this host's clock says {here:%Y-%m-%d %H:%M} UTC, the registry's {there:%Y-%m-%d %H:%M}: set it right"]
