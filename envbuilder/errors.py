"""The errors a user can meet: one class a cause, each with its own exit code.

Every error carries what is wrong, where, and what to do about it. The command line prints these three and
never a traceback. A fault in envbuilder itself is any other exception, and does show one.
"""

from __future__ import annotations

from dataclasses import dataclass

OK = 0
FAILED = 1
WRONG_USE = 2
NOT_ENOUGH = 3
INTERRUPTED = 130


@dataclass(frozen=True)
class Place:
    """Where something stands: a file, a line (1-based) and a field (dotted key), each as far as known."""

    file: str | None = None
    line: int | None = None
    field: str | None = None

    def __str__(self) -> str:
        text = self.file or ""
        if self.line is not None:
            text = f"{text}:{self.line}" if text else f"line {self.line}"
        if self.field:
            text = f"{text}: {self.field}" if text else self.field
        return text


class EnvbuilderError(Exception):
    """A fault the user can act on.

    ``message`` says what is wrong in one sentence, ``place`` where, ``cure`` what to do, ``detail`` holds lines
    worth seeing (the tail of a log, the two digests that differ).
    """

    exit_code = FAILED

    def __init__(
        self, message: str, *, place: Place | None = None, cure: str | None = None, detail: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.cure = cure
        self.detail = detail


class InputError(EnvbuilderError):
    """A file or argument of the user's is wrong: missing, of the wrong type, an unknown key, a contradiction."""

    exit_code = WRONG_USE


class NotEnoughError(EnvbuilderError):
    """The question cannot be answered with what is at hand."""

    exit_code = NOT_ENOUGH


class SourceError(EnvbuilderError):
    """A source (index, channel, mirror, registry, git host) does not answer or no longer serves an artifact."""

    exit_code = 4


class IntegrityError(EnvbuilderError):
    """Bytes are not those of the lock, or a lock was edited by hand."""

    exit_code = 5


class HostError(EnvbuilderError):
    """This host lacks something: an engine, a program, disk space, a GPU, a driver."""

    exit_code = 6


class BuildError(EnvbuilderError):
    """A step of an image build failed."""

    exit_code = 7
