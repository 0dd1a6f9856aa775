"""Reading a log of any size and encoding in constant memory, and finding where patterns may match.

The bytes are read in chunks. One Aho-Corasick pass over a chunk (all letters lowered) finds the fixed texts of all
patterns; only around those places is text decoded and a regular expression run.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import IO

from ahocorasick_rs import BytesAhoCorasick, Implementation

from envbuilder.diagnose.patterns import MOST_VAIN, Match, Matcher, compiled, literals
from envbuilder.errors import InputError, Place

CHUNK = 1 << 22
LINES_BEFORE = 2
LINES_AFTER = 5
PLACES_AT_END = 64
REACH = 4096
_MAGIC = (b"\x7fELF", b"PK\x03\x04", b"\x89PNG", b"\xff\xd8\xff", b"%PDF", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_GZIP = b"\x1f\x8b"
_PREFIX = re.compile(
    r"^(?:\x1b\[[0-9;]*[A-Za-z])*"
    r"(?:#\d+ (?:\d+\.\d+ )?|\[ *\d+\.\d+\] |\(\w+ pid=\d+(?:, ip=[\d.]+)?\) ?|NVRM: +|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+: (?:\[ *\d+\.\d+\] )?(?:NVRM: +)?|"
    r"\d{4}-\d\d-\d\dT[\d:.]+Z? )+",
    re.MULTILINE,
)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def byte_chunks(stream: IO[bytes]) -> Iterator[bytes]:
    """The stream's text as UTF-8 (or whatever superset of ASCII it is in), in chunks.

    UTF-16 and UTF-32 are converted, gzip is unpacked. Raises InputError for a file that is no text at all.
    """
    head = stream.read(CHUNK)
    if head.startswith(_GZIP):
        yield from _gunzip(head, stream)
        return
    if head.startswith(_MAGIC) or _is_binary(head[:65536]):
        raise InputError(
            "this is a binary file, not a log",
            place=Place(str(getattr(stream, "name", ""))),
            cure="Give the text that was printed. `envbuilder audit` reads binaries.",
        )
    encoding = _wide_encoding(head)
    decoder = codecs.getincrementaldecoder(encoding)("replace") if encoding else None
    while head:
        yield decoder.decode(head).encode("utf-8", "replace") if decoder else head
        head = stream.read(CHUNK)


def _gunzip(head: bytes, stream: IO[bytes]) -> Iterator[bytes]:
    import zlib

    unpack = zlib.decompressobj(wbits=31)
    try:
        while head:
            yield unpack.decompress(head, CHUNK)
            head = unpack.unconsumed_tail or stream.read(CHUNK)
    except zlib.error as error:
        raise InputError(
            f"the compressed log is damaged: {error}", cure="Unpack it by hand and give the text."
        ) from None


def _wide_encoding(head: bytes) -> str | None:
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    sample = head[:4096]
    if len(sample) >= 8 and sample[1::2].count(0) > 0.7 * len(sample) / 2:
        return "utf-16-le"
    if len(sample) >= 8 and sample[0::2].count(0) > 0.7 * len(sample) / 2:
        return "utf-16-be"
    return None


def _is_binary(head: bytes) -> bool:
    """Many control characters and no wide encoding. A few NULs are what a crash leaves in a kernel log."""
    if not head or _wide_encoding(head):
        return False
    control = sum(head.count(bytes([code])) for code in (*range(0, 7), *range(14, 27), *range(28, 32)))
    return control > 0.05 * len(head)


def text_chunks(lines: Iterable[str]) -> Iterator[bytes]:
    """Lines (with or without their newline) as chunks of UTF-8."""
    for line in lines:
        yield line.rstrip("\r\n").encode("utf-8", "replace") + b"\n"


def decode(data: bytes) -> str:
    """Text for people: UTF-8, else GB 18030, else with marks where it is neither; colours removed."""
    for encoding in ("utf-8", "gb18030"):
        try:
            return _ANSI.sub("", data.decode(encoding))
        except UnicodeDecodeError:
            continue
    return _ANSI.sub("", data.decode("utf-8", "replace"))


@lru_cache(maxsize=2)
def _by_literal(patterns: tuple[str, ...]) -> dict[bytes, tuple[str, ...]]:
    """The fixed texts of the patterns, each with the patterns that it may begin a match of."""
    found: dict[bytes, list[str]] = {}
    for pattern in patterns:
        for literal in literals(pattern):
            found.setdefault(literal.encode(), []).append(pattern)
    return {literal: tuple(group) for literal, group in found.items()}


@lru_cache(maxsize=2)
def _automaton(texts: tuple[bytes, ...]) -> BytesAhoCorasick:
    return BytesAhoCorasick(list(texts), implementation=Implementation.DFA)


class _Search:
    """The automaton over the fixed texts of some matchers."""

    def __init__(self, by_literal: Mapping[bytes, Sequence[Matcher]]) -> None:
        self._automaton = _automaton(tuple(by_literal))
        self.groups = list(by_literal.values())

    def places(self, buffer: bytes) -> Iterator[tuple[int, Sequence[Matcher]]]:
        """Where a fixed text stands, and the matchers to try there."""
        for index, start, _ in self._automaton.find_matches_as_indexes(buffer.lower(), overlapping=True):
            yield start, self.groups[index]


class Scanner:
    """Runs all matchers over a log, once. ``lines`` and ``empty`` say what was read.

    A matcher that was tried too often in vain is left out until the end of the log, where errors stand: its last places
    there are looked at.
    """

    def __init__(self, matchers: Mapping[str, Matcher]) -> None:
        self._all = {
            literal: [matchers[pattern] for pattern in group] for literal, group in _by_literal(tuple(matchers)).items()
        }
        self.lines = 0
        self.empty = True

    def scan(self, chunks: Iterable[bytes]) -> None:
        """Read all of ``chunks``. A place near a chunk's end is looked at again with what follows it."""
        search = _Search(self._all)
        buffer = last = b""
        first_line = last_line = 1
        for chunk in _large(chunks):
            buffer += chunk
            cut = _line_back(buffer, len(buffer), LINES_BEFORE + LINES_AFTER + 1)
            if cut == 0 and len(buffer) > CHUNK:
                cut = len(buffer) - 2 * REACH
            self._look(search, buffer, first_line, min(len(buffer), cut + REACH))
            if any(all(matcher.spent for matcher in group) for group in search.groups):
                search = _Search({k: g for k, g in self._all.items() if not all(m.spent for m in g)})
            last, last_line = buffer, first_line
            first_line += buffer.count(b"\n", 0, cut)
            buffer = buffer[cut:]
        self._look(search, buffer, first_line, len(buffer))
        self._look_at_end(last or buffer, last_line)
        self.lines = first_line + buffer.count(b"\n") - (1 if not buffer or buffer.endswith(b"\n") else 0)

    def _look(self, search: _Search, buffer: bytes, first_line: int, until: int) -> None:
        if self.empty and buffer.strip():
            self.empty = False
        position, line = 0, first_line
        for start, group in search.places(buffer):
            if start >= until:
                break
            active = [matcher for matcher in group if not matcher.spent]
            if active:
                line += buffer.count(b"\n", position, start)
                position = start
                _try(active, buffer, start, line)

    def _look_at_end(self, buffer: bytes, first_line: int) -> None:
        vain = {k: [m for m in group if m.vain >= MOST_VAIN] for k, group in self._all.items()}
        vain = {literal: group for literal, group in vain.items() if group}
        if not vain:
            return
        recent: dict[int, deque[int]] = {}
        search = _Search(vain)
        for start, group in search.places(buffer):
            recent.setdefault(id(group), deque(maxlen=PLACES_AT_END)).append(start)
        places = sorted(((s, n) for n, group in enumerate(search.groups) for s in recent.get(id(group), ())))
        position, line = 0, first_line
        for start, number in places:
            line += buffer.count(b"\n", position, start)
            position = start
            _try(search.groups[number], buffer, start, line)


def _try(active: Sequence[Matcher], buffer: bytes, start: int, line: int) -> None:
    """Run the matchers over the lines around ``start``, which is in the given line of the log."""
    window_start = max(_line_back(buffer, start, LINES_BEFORE), start - REACH)
    window = buffer[window_start : min(_line_forward(buffer, start, LINES_AFTER), start + REACH)]
    line -= buffer.count(b"\n", window_start, start)
    raw = decode(window)
    plain = None
    for matcher in active:
        expression = compiled(matcher.pattern)
        text, match = raw, expression.search(raw)
        if match is None:
            plain = _PREFIX.sub("", raw) if plain is None else plain
            text, match = plain, expression.search(plain)
        if match is None:
            matcher.vain += 1
            continue
        groups = tuple((k, v.strip()) for k, v in match.groupdict().items() if v and v.strip())
        first = (match.group(1) or "") if match.re.groups else ""
        matcher.add(Match(line + text.count("\n", 0, match.start()), _quote(text, match), groups, first))


def _quote(text: str, match: re.Match[str]) -> str:
    """What to show: what matched, or its line when that is short and says more."""
    quoted = match.group(0)
    if "\n" not in quoted and len(quoted) < 60:
        start = text.rfind("\n", 0, match.start()) + 1
        end = text.find("\n", match.end())
        line = text[start : end if end >= 0 else len(text)]
        if len(line.strip()) <= 160:
            quoted = line
    quoted = " ".join(quoted.split())
    return quoted if len(quoted) <= 320 else quoted[:317] + "..."


def _large(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Small chunks gathered to large ones."""
    parts: list[bytes] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size >= CHUNK:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _line_back(buffer: bytes, position: int, lines: int) -> int:
    """The start of the line that is ``lines`` before the one at ``position``."""
    for _ in range(lines + 1):
        position = buffer.rfind(b"\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _line_forward(buffer: bytes, position: int, lines: int) -> int:
    """The end of the line that is ``lines`` after the one at ``position``."""
    for _ in range(lines + 1):
        position = buffer.find(b"\n", position) + 1
        if position == 0:
            return len(buffer)
    return position
