"""Commands out of shell text, by tree-sitter's Bash grammar, which never fails on a faulty script."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

_MAX_DEPTH = 80
_BODIES = {
    "program",
    "list",
    "pipeline",
    "if_statement",
    "elif_clause",
    "else_clause",
    "for_statement",
    "while_statement",
    "do_group",
    "compound_statement",
    "subshell",
    "function_definition",
    "case_statement",
    "case_item",
    "negated_command",
    "redirected_statement",
    "c_style_for_statement",
    "ERROR",
}


@dataclass
class Command:
    """One simple command: its words (quotes removed, expansions as written), assignments before it, redirections."""

    argv: list[str]
    line: int
    last_line: int
    assignments: dict[str, str] = field(default_factory=dict)
    redirects: list[str] = field(default_factory=list)
    cwd: str = ""
    text: str = ""
    word_lines: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Assignment:
    """``NAME=value`` or ``export NAME=value`` on its own; an array's words are joined by spaces."""

    name: str
    value: str
    line: int
    exported: bool = False
    words: tuple[tuple[str, int], ...] = ()


@lru_cache(maxsize=1)
def _parser() -> Any:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str, first_line: int = 1) -> Iterator[Command | Assignment]:
    """The commands and assignments of ``text`` in the order they stand; lines count from ``first_line``."""
    tree = _parser().parse(text.encode("utf-8", "replace"))
    yield from _Walk(first_line).body(tree.root_node, 0, [])


class _Walk:
    def __init__(self, first_line: int) -> None:
        self.first = first_line
        self.cwd = ""
        self.behind: list[tuple[str, int]] = []

    def line(self, node: Any) -> int:
        return int(node.start_point[0]) + self.first

    def body(self, node: Any, depth: int, redirects: list[str]) -> Iterator[Command | Assignment]:
        if depth > _MAX_DEPTH:
            return
        kind = node.type
        if kind == "command":
            yield from self.command(node, redirects)
        elif kind == "declaration_command":
            yield from self.declaration(node)
        elif kind == "variable_assignment":
            yield self.assignment(node, exported=False)
        elif kind == "redirected_statement":
            found = [child for child in node.children if child.type == "file_redirect"]
            inner = [_redirect(child) for child in found]
            # The grammar counts the words behind a redirection to it; for the shell they are arguments.
            self.behind = [(_word(w), self.line(w)) for child in found for w in _targets(child)[1:]]
            for child in node.children:
                if child.type in _BODIES or child.type in ("command", "declaration_command"):
                    yield from self.body(child, depth + 1, inner)
            self.behind = []
        elif kind in _BODIES:
            before = self.cwd
            behind, self.behind = self.behind, []
            last = node.children[-1] if node.children and kind in ("list", "pipeline", "negated_command") else None
            for child in node.children:
                # The grammar hangs a redirection on the whole list; for the shell it is the last command's.
                self.behind = behind if last is not None and child == last else []
                yield from self.body(child, depth + 1, redirects if last is not None and child == last else [])
            self.behind = []
            if kind == "subshell":
                self.cwd = before
        elif kind == "variable_assignments":
            for child in node.children:
                yield from self.body(child, depth + 1, [])

    def command(self, node: Any, redirects: list[str]) -> Iterator[Command | Assignment]:
        argv: list[str] = []
        lines: list[int] = []
        assigned: dict[str, str] = {}
        inner = list(redirects)
        for child in node.children:
            if child.type == "variable_assignment":
                one = self.assignment(child, exported=False)
                assigned[one.name] = one.value
            elif child.type == "file_redirect":
                inner.append(_redirect(child))
            elif child.type in ("comment", "herestring_redirect"):
                continue
            elif child.type == "command_name":
                argv.append(_word(child.children[0]) if child.children else _text(child))
                lines.append(self.line(child))
            else:
                argv.append(_word(child))
                lines.append(self.line(child))
        if not argv:
            return
        argv += [word for word, _ in self.behind]
        lines += [line for _, line in self.behind]
        if argv[0] == "cd" and len(argv) > 1:
            self.cwd = argv[1] if argv[1].startswith(("/", "$", "~")) else f"{self.cwd}/{argv[1]}".lstrip("/")
        script = _inner_script(argv)
        if script is not None:
            yield from parse(script, self.line(node))
            return
        yield Command(
            argv,
            self.line(node),
            int(node.end_point[0]) + self.first,
            assigned,
            inner,
            self.cwd,
            _text(node),
            lines,
        )

    def declaration(self, node: Any) -> Iterator[Assignment]:
        exported = bool(node.children) and node.children[0].type == "export"
        for child in node.children:
            if child.type == "variable_assignment":
                yield self.assignment(child, exported=exported)

    def assignment(self, node: Any, *, exported: bool) -> Assignment:
        name = next((_text(c) for c in node.children if c.type in ("variable_name", "subscript")), "")
        value, words = "", []
        for child in node.children:
            if child.type == "array":
                words = [(_word(c), self.line(c)) for c in child.children if c.is_named and c.type != "comment"]
                value = " ".join(word for word, _ in words)
            elif child.is_named and child.type not in ("variable_name", "subscript"):
                value = _word(child)
        return Assignment(name, value, self.line(node), exported, tuple(words))


def _text(node: Any) -> str:
    return str(node.text.decode("utf-8", "replace"))


def _word(node: Any) -> str:
    """The word as the command gets it: quotes and escapes gone, expansions left as written."""
    if node.type == "string":
        inner = _text(node)
        inner = inner[1:-1] if len(inner) > 1 and inner.endswith('"') else inner.strip('"')
        return re.sub(r"\\\n", "", re.sub(r'\\(["\\`])', r"\1", inner))
    if node.type == "raw_string":
        return _text(node)[1:-1]
    if node.type == "concatenation":
        return "".join(_word(child) for child in node.children)
    if node.type == "word":
        return re.sub(r"\\(.)", r"\1", re.sub(r"\\\n", "", _text(node)))
    return _text(node)


def _targets(node: Any) -> list[Any]:
    return [child for child in node.children if child.is_named and child.type != "file_descriptor"]


def _redirect(node: Any) -> str:
    operator = next((_text(c) for c in node.children if not c.is_named), ">")
    return operator + "".join(_word(target) for target in _targets(node)[:1])


def _inner_script(argv: list[str]) -> str | None:
    """The text after ``bash -c`` and the like."""
    name = argv[0].rsplit("/", 1)[-1]
    if name in ("bash", "sh", "zsh", "dash") and len(argv) > 2:
        for position, word in enumerate(argv[1:], start=1):
            if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
                return argv[position + 1] if position + 1 < len(argv) else None
    return None


_EXPANSION = re.compile(r"\$(?:(\w+)|\{(\w+)(?:(:?[-+])([^{}]*)|(%%?|##?)([^{}]*)|(//?)([^/{}]*)/?([^{}]*))?\})")


def expand(text: str, env: dict[str, str]) -> str:
    """``text`` with the variables of ``env`` filled in; what is not known stays as written."""

    def one(match: re.Match[str]) -> str:
        name = match.group(1) or match.group(2)
        operator, operand = match.group(3), match.group(4)
        value = env.get(name)
        if operator in ("-", ":-"):
            return value if value else operand
        if operator in ("+", ":+"):
            return operand if value else ""
        if value is None:
            return match.group(0)
        if match.group(5):
            return _trim(value, match.group(5), match.group(6))
        if match.group(7):
            return value.replace(match.group(8), match.group(9) or "", -1 if match.group(7) == "//" else 1)
        return value

    for _ in range(3):
        text, before = _EXPANSION.sub(one, text), text
        if text == before:
            break
    return text


def _trim(value: str, operator: str, pattern: str) -> str:
    import fnmatch

    cuts = range(len(value) + 1)
    if operator.startswith("%"):
        order = reversed(cuts) if operator == "%" else cuts
        return next((value[:cut] for cut in order if fnmatch.fnmatchcase(value[cut:], pattern)), value)
    order = cuts if operator == "#" else reversed(cuts)
    return next((value[cut:] for cut in order if fnmatch.fnmatchcase(value[:cut], pattern)), value)
