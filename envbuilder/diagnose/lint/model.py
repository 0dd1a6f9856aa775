"""What the parsers of lint hand to its checks: requirements, install steps, recipes; and what the checks answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet

from envbuilder.stack.compat.cards import Card


@dataclass(frozen=True)
class Fix:
    """A safe change: the lines ``first`` to ``last`` (1-based, inclusive) become ``lines``."""

    first: int
    last: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Hit:
    """A rule that applies: where, on which evidence, with the values its text names, and a safe fix if there is one."""

    rule: str
    line: int | None = None
    evidence: tuple[str, ...] = ()
    values: Mapping[str, str] = field(default_factory=dict)
    field: str | None = None
    fix: Fix | None = None


@dataclass(frozen=True)
class Requirement:
    """One requirement as a file or command states it.

    ``name`` is the normalised project name (empty for a bare path or address), ``specifier`` the version part as
    written (``==2.6.0+cu118``; conda's ``=2.6`` and ``2.6.*`` alike), ``build`` and ``channel`` conda's, ``url`` an
    address, path or VCS reference, ``line`` 1-based.
    """

    name: str
    specifier: str
    raw: str
    line: int
    url: str = ""
    extras: tuple[str, ...] = ()
    marker: str = ""
    channel: str = ""
    build: str = ""
    hashed: bool = False
    conda: bool = False

    @property
    def version(self) -> str:
        """The one version named by ``==``, ``===`` or conda's ``=``, without a trailing ``.*``; else empty."""
        text = self.specifier
        if self.conda:
            bare = text.lstrip("=")
            return bare.removesuffix(".*").rstrip("*") if bare and bare[0].isdigit() and "," not in bare else ""
        try:
            specifiers = list(SpecifierSet(text))
        except InvalidSpecifier:
            return ""
        for one in specifiers:
            if one.operator in ("==", "==="):
                return one.version.removesuffix(".*")
        return ""

    @property
    def number(self) -> str:
        """``version`` without its local part: 2.6.0 of 2.6.0+cu118."""
        return self.version.partition("+")[0]

    @property
    def local(self) -> str:
        """The local part of ``version``: cu118 of 2.6.0+cu118."""
        return self.version.partition("+")[2]

    @property
    def bounds(self) -> list[Specifier]:
        """The single specifiers; empty when there are none or they cannot be read."""
        text = self.specifier
        if self.conda and self.version:
            text = f"=={self.version}.*"
        try:
            return list(SpecifierSet(text))
        except InvalidSpecifier:
            return []

    def admits(self, version: str) -> bool:
        """Whether ``version`` satisfies the specifier; an unreadable specifier admits nothing."""
        try:
            text = f"=={self.version}.*" if self.conda and self.version else self.specifier
            return SpecifierSet(text).contains(version, prereleases=True)
        except InvalidSpecifier:
            return False


@dataclass
class Step:
    """One command that installs, fetches or builds something.

    ``tool``: pip, conda, apt, git, setup.py or other. ``flags``: option names without dashes that were given.
    ``env``: variables that hold when it runs, as far as known. ``argv``: the words, wrappers such as sudo removed.
    """

    tool: str
    line: int
    text: str
    requirements: list[Requirement] = field(default_factory=list)
    verb: str = ""
    index_url: str = ""
    extra_index: list[str] = field(default_factory=list)
    find_links: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    editable: list[str] = field(default_factory=list)
    channels: list[str] = field(default_factory=list)
    options: dict[str, list[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    env: dict[str, str] = field(default_factory=dict)
    argv: list[str] = field(default_factory=list)
    cwd: str = ""
    stage: int = 0
    redirects: list[str] = field(default_factory=list)
    last_line: int = 0

    @property
    def indexes(self) -> list[str]:
        """All index addresses of this step, the main one first."""
        return [u for u in (self.index_url, *self.extra_index) if u]

    def get(self, *names: str) -> Requirement | None:
        """The first requirement with one of ``names``."""
        return next((r for r in self.requirements if r.name in names), None)


@dataclass
class Base:
    """A FROM line, with its variables filled in as far as the file tells.

    ``image`` without tag and digest, ``tag`` and ``digest`` as written, ``cuda`` major.minor, ``cudnn`` major,
    ``flavour`` base, runtime or devel, ``distro`` such as ubuntu22.04, ``torch`` the version the image holds.
    """

    text: str
    line: int
    image: str = ""
    tag: str = ""
    digest: str = ""
    cuda: str = ""
    cudnn: str = ""
    flavour: str = ""
    distro: str = ""
    torch: str = ""


@dataclass
class Stage:
    """A stage of a Dockerfile: its base (another stage's index in ``parent``), its instructions' values."""

    index: int
    name: str
    base: Base
    parent: int | None = None
    copies_from: list[int] = field(default_factory=list)


@dataclass
class Recipe:
    """A file, parsed: what it installs step by step, with everything the checks ask for.

    ``kind`` is the format's name. ``env``: (name, value, line) of ENV, ARG, export or variables blocks in order.
    ``data``: the parsed document of a structured format; ``line_of`` finds the line of a key path in it.
    """

    file: str
    kind: str
    text: str
    cards: tuple[Card, ...]
    steps: list[Step] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    env: list[Variable] = field(default_factory=list)
    overrides: list[Override] = field(default_factory=list)
    data: Any = None
    line_of: Callable[..., int | None] = lambda *path: None
    hits: list[Hit] = field(default_factory=list)
    verl: str = ""

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without ends."""
        return self.text.splitlines()

    def chain(self, stage: int) -> list[Step]:
        """The steps whose results a stage holds: its own and those of the stages it is built from, in order."""
        order: list[int] = []
        current: int | None = stage
        while current is not None and current not in order:
            order.insert(0, current)
            current = self.stages[current].parent if current < len(self.stages) else None
        return [step for index in order for step in self.steps if step.stage == index]

    def root(self, stage: int) -> Base | None:
        """The base image a stage stands on in the end."""
        seen: set[int] = set()
        while stage < len(self.stages) and stage not in seen:
            seen.add(stage)
            parent = self.stages[stage].parent
            if parent is None:
                return self.stages[stage].base
            stage = parent
        return None

    def environments(self) -> Iterator[tuple[Base | None, list[Step]]]:
        """Each environment the file makes: one a stage that no other is built from; one for everything else."""
        if not self.stages:
            yield None, self.steps
            return
        inherited = {s.parent for s in self.stages if s.parent is not None}
        for stage in self.stages:
            if stage.index not in inherited:
                yield self.root(stage.index), self.chain(stage.index)


@dataclass(frozen=True)
class Variable:
    """A variable as a file sets it. ``kind``: ARG, ENV or export."""

    name: str
    value: str
    line: int
    kind: str
    stage: int = -1


@dataclass(frozen=True)
class Override:
    """One setting of verl: a dotted key, its value as text, and how it was given (``""``, ``+``, ``++`` or ``~``)."""

    key: str
    value: str
    line: int
    prefix: str = ""
    entry: str = "main_ppo"


Check = Callable[[Recipe], Iterator[Hit]]
