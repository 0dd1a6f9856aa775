"""Linting: from paths to findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from envbuilder.diagnose.lint import files, fixing
from envbuilder.diagnose.lint.checks import (
    architectures,
    build_machine,
    compilers,
    conda,
    containers,
    cudnn,
    extensions,
    hygiene,
    images,
    installs,
    runs,
    stacks,
    torch_builds,
    verl,
    wheels,
)
from envbuilder.diagnose.lint.formats import READERS, TITLES, format_of
from envbuilder.diagnose.lint.model import Hit, Recipe
from envbuilder.diagnose.lint.settings import verl_version
from envbuilder.diagnose.lint.suppress import suppressed
from envbuilder.diagnose.masking import mask
from envbuilder.diagnose.model import Lang
from envbuilder.diagnose.rulebook import finding, rules
from envbuilder.errors import InputError, Place
from envbuilder.report import Finding, Severity
from envbuilder.stack.compat.cards import Card, cards_in, find_card

DEFAULT_CARD = "p40"
_INSTALLS = (
    torch_builds.check,
    installs.check,
    extensions.check,
    architectures.check,
    compilers.check,
    cudnn.check,
    conda.check,
    conda.check_names,
    stacks.check_misspelt,
    hygiene.check,
    wheels.check,
    verl.check_source,
)
_CHECKS: dict[str, tuple[Callable[[Recipe], Iterator[Hit]], ...]] = {
    "dockerfile": (
        *_INSTALLS,
        images.check,
        images.check_index_variables,
        build_machine.check,
        runs.check,
        architectures.check_commands,
        verl.check,
    ),
    "script": (
        *_INSTALLS,
        containers.check_runs,
        runs.check,
        runs.check_continuations,
        architectures.check_commands,
        verl.check,
    ),
    "requirements": _INSTALLS,
    "environment": _INSTALLS,
    "pyproject": (*_INSTALLS, installs.check_uv_sources),
    "python-lock": (torch_builds.check, cudnn.check),
    "conda-lock": (conda.check, cudnn.check, torch_builds.check),
    "compose": (containers.check_compose, runs.check_compose, hygiene.check),
    "verl-settings": (verl.check,),
    "stack": (stacks.check,),
    "build-file": (architectures.check_build_file,),
    "listing": (containers.check_listing,),
    "data-schema": (verl.check_schema,),
}
_COMMENT_CARD = re.compile(r"^\s*(?:#|//|--).*\b(target|gpu|card|hardware|device|runs on|for)\b", re.IGNORECASE)


@dataclass(frozen=True)
class FileResult:
    """What lint says of one file. ``kind`` is empty for an unknown format; ``fixed`` is the text after fixes."""

    file: str
    kind: str
    cards: tuple[Card, ...]
    findings: tuple[Finding, ...] = ()
    text: str = ""
    fixed: str = ""
    fixable: int = 0


@dataclass
class Linted:
    """The results over all files, and the files that lint did not understand."""

    results: list[FileResult] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings, file by file."""
        return tuple(f for result in self.results for f in result.findings)

    @property
    def faulty(self) -> bool:
        """Whether anything but advice was found."""
        return any(f.severity is not Severity.ADVICE for f in self.findings)


def lint(paths: Iterable[Path], gpu: str | None = None, lang: Lang = "en") -> Linted:
    """Lint files and folders. ``gpu`` names the card; without it each file's own words decide, else the P40.

    Raises InputError for a path that does not exist or cannot be read.
    """
    cards = tuple(find_card(name.strip()) for name in gpu.split(",")) if gpu else ()
    done = Linted()
    for path in paths:
        if path.is_dir():
            for file in files.walk(path):
                if files.known_by_name(file):
                    _one(file, cards, lang, done, named=False)
            done.results += _context(path, cards, lang)
        else:
            _one(path, cards, lang, done, named=True)
    return done


def _one(path: Path, cards: tuple[Card, ...], lang: Lang, done: Linted, *, named: bool) -> None:
    try:
        text = files.read_text(path)
    except FileNotFoundError:
        if not named:
            return
        raise InputError("there is no such file", place=Place(str(path)), cure="Check the path.") from None
    except OSError as error:
        if not named:
            return
        raise InputError(f"the file cannot be read: {error.strerror}", place=Place(str(path))) from error
    kind = format_of(path.name, text) if text is not None else ""
    if not kind or text is None:
        if named:
            done.unknown.append(str(path))
        return
    done.results.append(lint_text(str(path), text, cards, lang, kind))


def lint_text(name: str, text: str, cards: tuple[Card, ...] = (), lang: Lang = "en", kind: str = "") -> FileResult:
    """Lint one text as the file ``name``."""
    kind = kind or format_of(name, text)
    cards = cards or cards_of(kind, text) or (find_card(DEFAULT_CARD),)
    if not kind:
        return FileResult(name, "", cards, text=text, fixed=text)
    recipe = Recipe(
        name, kind, text, cards, verl=verl_version(text) if kind in ("script", "verl-settings", "dockerfile") else ""
    )
    READERS[kind](recipe)
    hits = list(recipe.hits)
    for check in _CHECKS[kind]:
        hits += check(recipe)
    # A parser that misses the end of something says so for the line after the last.
    end = max(1, len(recipe.lines))
    hits = [replace(hit, line=min(hit.line, end)) if hit.line else hit for hit in hits]
    kept = sorted(suppressed(text, _unique(hits)), key=lambda h: (h.line or 0, h.rule))
    fixes = [h.fix for h in kept if h.fix]
    findings = tuple(_finding(name, hit, lang) for hit in kept)
    return FileResult(name, kind, cards, findings, text, fixing.apply(text, fixes) if fixes else text, len(fixes))


def _finding(name: str, hit: Hit, lang: Lang) -> Finding:
    values = dict(hit.values)
    if lang == "zh":
        values |= {key.removesuffix("_zh"): value for key, value in hit.values.items() if key.endswith("_zh")}
    source = values.pop("row_source", "")
    values = {key: mask(value) for key, value in values.items()}
    evidence = tuple(mask(line) for line in hit.evidence)
    made = finding(rules()[hit.rule], values, lang, Place(name, hit.line, hit.field), evidence)
    if not source:
        return made
    return replace(made, sources=tuple(dict.fromkeys([*made.sources, source])))


def _unique(hits: Iterable[Hit]) -> Iterator[Hit]:
    seen: set[tuple[str, int | None]] = set()
    for hit in hits:
        if (hit.rule, hit.line) not in seen:
            seen.add((hit.rule, hit.line))
            yield hit


def cards_of(kind: str, text: str) -> tuple[Card, ...]:
    """The cards a file names: ``[target] gpus`` of a TOML file, else a comment such as ``# target: Tesla P40``."""
    if kind == "stack":
        match = re.search(r"^\s*gpus?\s*=\s*(\[[^\]]*\]|\"[^\"]*\")", text, re.MULTILINE)
        return cards_in(match.group(1)) if match else ()
    for number, line in enumerate(text[:20_000].splitlines()):
        bare = line.lstrip().startswith(("#", "//"))
        if bare and (_COMMENT_CARD.match(line) or number < 3):
            found = cards_in(line)
            if found:
                return found
    return ()


def _context(folder: Path, cards: tuple[Card, ...], lang: Lang) -> list[FileResult]:
    """A folder with a Dockerfile is a build context: large files in it that .dockerignore does not keep out."""
    if not any((folder / name).is_file() for name in ("Dockerfile", "Containerfile")):
        return []
    from docker.utils.build import PatternMatcher

    ignore = folder / ".dockerignore"
    patterns = [p.strip() for p in ignore.read_text(errors="replace").splitlines()] if ignore.is_file() else []
    matcher = PatternMatcher([p for p in patterns if p and not p.startswith("#")])
    rows = []
    for path in files.walk(folder):
        relative = path.relative_to(folder).as_posix()
        try:
            size = path.lstat().st_size
        except OSError:
            continue
        # The stubs of docker-py say PathLike; the code wants a string.
        if size >= 1 << 20 and not matcher.matches(relative):  # type: ignore[arg-type]
            rows.append((size, relative, 0))
    recipe = Recipe(str(folder), "listing", "", cards or (find_card(DEFAULT_CARD),), data=rows)
    hits = [Hit(h.rule, None, h.evidence, h.values) for h in containers.check_listing(recipe)]
    found = tuple(_finding(str(folder), hit, lang) for hit in hits)
    return [FileResult(str(folder), "listing", recipe.cards, found)] if found else []


def format_list() -> str:
    """The formats lint knows, for people."""
    return ", ".join(sorted(set(TITLES.values()), key=str.lower))
