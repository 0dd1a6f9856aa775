"""From what was found to what it means for a card: for a file, and for a package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, Place
from envbuilder.audit.cards import Card, driver_for_cuda, driver_for_isa, newest
from envbuilder.audit.fatbin import Image, Kind
from envbuilder.audit.rules import Rule, rule_for
from envbuilder.audit.runs import Means, means_of

_CUDA_IN_NAME = re.compile(r"-cu(\d\d)$")


class Answer(str, Enum):
    """Whether code runs on a card."""

    YES = "yes"
    JIT = "yes by JIT"
    BY_DESIGN = "partly by design"
    NO = "no"
    NO_CODE = "no device code"
    UNKNOWN = "unknown"

    @property
    def runs(self) -> bool:
        """Whether nothing stands in the way."""
        return self in (Answer.YES, Answer.JIT, Answer.BY_DESIGN, Answer.NO_CODE)


@dataclass(frozen=True)
class FileVerdict:
    """The answer for one file and one card.

    ``sass`` and ``ptx`` are the images that would run, ``units`` the units that decide and ``running`` how many of
    them run, ``holds`` what there is instead (for a no), ``driver`` the least Linux driver, ``note`` why.
    """

    path: str
    card: Card
    answer: Answer
    sass: tuple[Arch, ...] = ()
    ptx: tuple[Image, ...] = ()
    units: int = 0
    running: int = 0
    holds: tuple[str, ...] = ()
    driver: str | None = None
    note: str = ""
    rule: Rule | None = None

    @property
    def harmless(self) -> bool:
        """Whether nobody needs this file to run."""
        return self.answer.runs or bool(self.rule and self.rule.optional)

    def sentence(self) -> str:
        """How, or why not, in a few words."""
        parts = []
        if self.sass:
            parts.append(", ".join(a.sm for a in self.sass))
        if self.ptx:
            parts.append(", ".join(str(i) for i in self.ptx) + (f", driver {self.driver}" if self.driver else ""))
        if self.units and self.running < self.units:
            parts.append(f"{self.running} of {self.units} code units")
        if self.answer is Answer.NO and self.holds:
            parts.append(f"holds {', '.join(self.holds)}")
        if self.note:
            parts.append(self.note)
        return "; ".join(parts)


def judge(binary: Binary, card: Card) -> FileVerdict:
    """What a file does on a card, by its units and the rule for it."""
    rule = rule_for(binary.path)
    if rule and rule.own_business:
        return FileVerdict(binary.path, card, Answer.NO_CODE, note="a compiler's own material", rule=rule)
    tally = _Tally(card)
    for units in binary.judged():
        tally.add(units.images, units.live)
    answer, note = _answer(binary, tally, rule)
    return FileVerdict(
        path=binary.path,
        card=card,
        answer=answer,
        sass=tuple(sorted(tally.sass)),
        ptx=tuple(sorted(tally.ptx)),
        units=tally.units,
        running=tally.running,
        holds=tuple(sorted(tally.others, key=_by_number)[:8]),
        driver=_driver(binary, tally),
        note=note,
        rule=rule,
    )


@dataclass
class _Tally:
    card: Card
    units: int = 0
    running: int = 0
    unknown: int = 0
    slimmed: bool = False
    sass: set[Arch] = field(default_factory=set)
    ptx: set[Image] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def add(self, images: Sequence[Image], count: int) -> None:
        means, image = means_of(images, self.card.arch, self.card.newest_isa)
        self.units += count
        if means is Means.SASS and image:
            self.running += count
            self.sass.add(image.arch)
        elif means is Means.PTX and image:
            self.running += count
            self.ptx.add(image)
        else:
            self.unknown += count if means is Means.UNKNOWN else 0
            self.others.update(i.arch.compute if i.kind is Kind.PTX else i.arch.sm for i in images if not i.blanked)
            self.slimmed = self.slimmed or any(i.blanked for i in images)

    @property
    def lacking(self) -> int:
        """Units that surely do not run."""
        return self.units - self.running - self.unknown


def _answer(binary: Binary, tally: _Tally, rule: Rule | None) -> tuple[Answer, str]:
    doubt = "; ".join(binary.doubts)
    if tally.lacking and not (rule and rule.partly and tally.running):
        return Answer.NO, "; ".join(filter(None, (doubt, "slimmed for another card" if tally.slimmed else "")))
    if binary.cut and rule and rule.partly and tally.running:
        return Answer.BY_DESIGN, ""
    if binary.cut:
        return Answer.UNKNOWN, "only its beginning was seen" + (f"; {doubt}" if doubt else "")
    if doubt:
        return Answer.UNKNOWN, doubt
    if tally.running < tally.units and rule and rule.partly and tally.running:
        return Answer.BY_DESIGN, ""
    if tally.unknown:
        return Answer.UNKNOWN, _why_unknown(binary)
    if not tally.units:
        return Answer.NO_CODE, ""
    relocatable = all(u.place is Place.RELOCATABLE for u in binary.judged())
    return (Answer.JIT if tally.ptx else Answer.YES), "relocatable, not linked yet" if relocatable else ""


def _why_unknown(binary: Binary) -> str:
    kinds = {i.kind for u in binary.judged() for i in u.images}
    if Kind.UNKNOWN in kinds:
        return "it holds a kind of image that is not known here"
    return "LTO-IR: it becomes code only when it is linked"


def _driver(binary: Binary, tally: _Tally) -> str | None:
    drivers = [d for d in (driver_for_isa(i.isa) for i in tally.ptx) if d]
    needed = binary.linkage.needed if binary.linkage else ()
    for name in needed:
        library, _, major = name.partition(".so.")
        if library == "libcudart" and major.split(".")[0].isdigit() and tally.units:
            driver = driver_for_cuda(int(major.split(".")[0]))
            drivers += [driver] if driver else []
    return newest(drivers)


def _by_number(name: str) -> tuple[str, int, str]:
    stem, _, rest = name.partition("_")
    digits = rest.rstrip("af")
    return (stem != "sm" and stem) or "", int(digits) if digits.isdigit() else 0, rest


@dataclass(frozen=True)
class PackageVerdict:
    """The answer for a package (or for the files that belong to none) and one card."""

    name: str
    version: str
    card: Card
    answer: Answer
    files: tuple[FileVerdict, ...]
    harmless: bool
    note: str = ""

    @property
    def title(self) -> str:
        """Name and version."""
        return f"{self.name} {self.version}".strip()

    @property
    def guilty(self) -> tuple[FileVerdict, ...]:
        """The files that do not run and are needed."""
        return tuple(f for f in self.files if f.answer is Answer.NO and (not f.harmless or not self.harmless))

    @property
    def driver(self) -> str | None:
        """The least Linux driver of all files that run."""
        needed = [f for f in self.files if f.answer.runs and not (f.rule and f.rule.optional)]
        release = _CUDA_IN_NAME.search(self.name)
        driver = driver_for_cuda(int(release.group(1))) if release and any(f.units for f in needed) else None
        return newest(d for d in (driver, *(f.driver for f in needed)) if d)


_WEIGHT = (Answer.NO_CODE, Answer.YES, Answer.JIT, Answer.BY_DESIGN, Answer.UNKNOWN, Answer.NO)


def judge_package(
    name: str, version: str, verdicts: Sequence[FileVerdict], card: Card, cuda: str = ""
) -> PackageVerdict:
    """The answer for a package out of its files'. ``cuda`` is torch's CUDA release where it is known (``12.4``)."""
    verdicts = sorted(verdicts, key=lambda v: v.path)
    variants = [v for v in verdicts if v.rule and v.rule.variants]
    needed = [v for v in verdicts if v not in variants and not (v.rule and v.rule.optional)]
    optional = [v for v in verdicts if v.rule and v.rule.optional]
    answers = [v.answer for v in needed]
    note = ""
    if variants:
        answer, note = _choose_variant(variants, cuda)
        answers.append(answer)
    worst = max(answers, key=_WEIGHT.index, default=Answer.NO_CODE)
    if worst is Answer.NO_CODE and any(v.answer is not Answer.NO_CODE for v in optional):
        worst = max((v.answer for v in optional), key=_WEIGHT.index)
        rule = next(v.rule for v in optional if v.rule and v.answer is worst)
        return PackageVerdict(name, version, card, worst, tuple(verdicts), True, "" if worst.runs else rule.why)
    return PackageVerdict(name, version, card, worst, tuple(verdicts), worst.runs, note)


def _choose_variant(variants: Sequence[FileVerdict], cuda: str) -> tuple[Answer, str]:
    """One variant is loaded: torch's CUDA release says which; without it, any that runs will do."""
    running = [v for v in variants if v.answer.runs]
    digits = cuda.replace(".", "")
    chosen = [v for v in variants if digits and f"cuda{digits}." in v.path]
    names = ", ".join(_tag(v) for v in running) or "none"
    if chosen:
        return chosen[0].answer, f"torch's CUDA {cuda} loads {_tag(chosen[0])}; running: {names}"
    best = min(
        (v.answer for v in running), key=_WEIGHT.index, default=max((v.answer for v in variants), key=_WEIGHT.index)
    )
    return best, f"of {len(variants)} variants these run: {names}"


def _tag(verdict: FileVerdict) -> str:
    return verdict.path.rsplit("_", 1)[-1].removesuffix(".so")
