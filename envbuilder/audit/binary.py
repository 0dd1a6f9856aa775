"""One file: what device code is in it, told apart by where it lies, and what it needs of the host."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from envbuilder.audit import elf, kernels
from envbuilder.audit.arch import Arch
from envbuilder.audit.archive import MAGIC as ARCHIVE_MAGIC
from envbuilder.audit.archive import members
from envbuilder.audit.elf import Linkage, Section
from envbuilder.audit.fatbin import Entry, Image, decode
from envbuilder.audit.runs import Means, means_of
from envbuilder.audit.scan import Found, Scanner
from envbuilder.audit.sources import PartSource, Source, StreamSource, UnseenError

_RELOCATABLE_SECTION = "__nv_relfatbin"
_USUAL = (".nv_fatbin", _RELOCATABLE_SECTION)
_STORE_IN_MEMORY = 4 << 20
_SMALLEST_GAP = 4096
# Compilers put units without kernels into the usual sections. What a library keeps elsewhere it put there itself, by
# the thousand (libcufft), so there only a few are looked into.
_FEW = 256
# Sections of ELF types other than PROGBITS hold tables of the linker; debug data holds none of the driver's input.
_CUT_SHORT = "the file ends before its header says"
_SKIPPED_NAMES = (".debug", ".eh_frame", ".gcc_except_table", ".comment")


class Place(str, Enum):
    """Where a unit lies, which says whether the driver ever gets it."""

    USUAL = ".nv_fatbin"
    RELOCATABLE = "relocatable"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True)
class Units:
    """Units of one kind: the same images, the same place. ``empty`` of the ``count`` hold no kernel."""

    images: tuple[Image, ...]
    place: Place
    count: int
    empty: int = 0
    section: str = ""

    @property
    def live(self) -> int:
        """The units that hold a kernel."""
        return self.count - self.empty


@dataclass
class Binary:
    """What was found in one file. ``doubts`` say why it cannot be judged fully, ``cut`` that only its head was seen,
    ``linkage_unseen`` that what it needs of other libraries passed by unread."""

    path: str
    units: list[Units] = field(default_factory=list)
    linkage: Linkage | None = None
    machine: int = 0
    doubts: list[str] = field(default_factory=list)
    cut: bool = False
    linkage_unseen: bool = False

    @property
    def is_binary(self) -> bool:
        """Whether it is machine code or device code at all, or seems to be damaged such."""
        return bool(self.machine or self.units or self.doubts)

    @property
    def has_code(self) -> bool:
        """Whether any device code is in it, empty units included."""
        return bool(self.units)

    def judged(self) -> list[Units]:
        """The units that decide: with kernels, and relocatable ones only where nothing linked is beside them."""
        live = [u for u in self.units if u.live]
        linked = [u for u in live if u.place is not Place.RELOCATABLE]
        return linked or live

    def images(self) -> dict[Image, int]:
        """How many images of each kind are in the file, the relocatable and empty ones included."""
        counts: dict[Image, int] = {}
        for units in self.units:
            for image in units.images:
                counts[image] = counts.get(image, 0) + units.count
        return counts


def read_binary(path: str, source: Source, cards: Sequence[Arch]) -> Binary:
    """Scan a file that can be read at any offset. ``cards`` are those it will be judged for: units that run on all of
    them are not looked into."""
    start = source.read(0, 64)
    if start.startswith(ARCHIVE_MAGIC):
        return _archive(path, source, cards)
    scanner = Scanner(source)
    header = elf.parse_header(start)
    binary = Binary(path)
    table: list[Section] = []
    if header is None or header.machine == kernels.EM_CUDA:
        scanner.region(0, None)
    else:
        binary.machine = header.machine
        table = elf.sections(source, header)
        for low, high, content in regions(table, source.size or 0):
            # Machine code of the host holds device code only in files whose maker knew no better place.
            if content is not Content.HOST_CODE or not scanner.found.units:
                scanner.region(low, high, whole=content is Content.DATA)
        binary.linkage = elf.linkage(source, header)
        if elf.is_cut_short(header, source.size or 0):
            binary.doubts.append(_CUT_SHORT)
    _tell_apart(binary, scanner.found, table, source, cards)
    return binary


def read_stream(
    path: str,
    chunks: Iterable[bytes],
    size: int | None,
    *,
    cut: bool = False,
    enough: Callable[[tuple[Image, ...]], bool] | None = None,
) -> Binary:
    """Scan a file that passes by once. ``size`` is what the archive says; ``cut`` that only its head will come.

    ``enough`` is asked for each unit, by its images, whether it settles the matter: the rest is then not read. Units
    that are not linked yet settle nothing.
    """
    with tempfile.SpooledTemporaryFile(max_size=_STORE_IN_MEMORY) as store:
        source = StreamSource(iter(chunks), store, size)
        binary = Binary(path, cut=cut)
        header = elf.parse_header(source.read(0, 64))
        host = header is not None and header.machine != kernels.EM_CUDA
        if host and header is not None:
            binary.machine = header.machine
            try:
                for span in elf.linkage_ranges(source, header):
                    source.keep(*span)
            except UnseenError:
                pass

        def settled(entries: list[Entry]) -> bool:
            images = tuple(entry.image for entry in entries)
            return enough is not None and enough(images) and kernels.is_linked(source, entries)

        scanner = Scanner(source, settled if enough else None)
        scanner.region(0, None)
        if scanner.stopped:
            cut = binary.cut = True
        else:
            source.drain()
        table: list[Section] = []
        if host and header is not None and not cut:
            if elf.is_cut_short(header, source.passed):
                binary.doubts.append(_CUT_SHORT)
            try:
                binary.linkage = elf.linkage(source, header)
            except UnseenError:
                binary.linkage_unseen = True
            try:
                table = elf.sections(source, header)
            except UnseenError:
                if scanner.found.units:
                    binary.doubts.append("its section table cannot be read from a stream")
        found = scanner.found
        if cut:
            found.damaged.clear()
        _tell_apart(binary, found, table, None, ())
        return binary


class Content(int, Enum):
    """What a part of an ELF file is, in the order in which the parts are looked at."""

    DATA = 0
    UNNAMED = 1  # in no section: left over, or appended
    HOST_CODE = 2


def regions(table: list[Section], size: int) -> list[tuple[int, int, Content]]:
    """(start, end, content) of the parts of an ELF file that can hold device code: data first, from low to high."""
    if not table:
        return [(0, size, Content.DATA)]
    spans = sorted(
        ((s.offset, min(s.offset + s.size, size), s) for s in table if s.type != elf.SHT_NOBITS and s.size),
        key=lambda span: span[:2],
    )
    found = []
    position = 0
    for start, end, section in spans:
        if start - position >= _SMALLEST_GAP:
            found.append((position, start, Content.UNNAMED))
        data = section.type == elf.SHT_PROGBITS and not section.name.startswith(_SKIPPED_NAMES)
        if (data or elf.SHT_LOOS <= section.type < elf.SHT_GNU) and max(start, position) < end:
            content = Content.HOST_CODE if section.executable else Content.DATA
            found.append((max(start, position), end, content))
        position = max(position, end)
    if size - position >= _SMALLEST_GAP:
        found.append((position, size, Content.UNNAMED))
    return sorted(found, key=lambda region: region[2])


def _archive(path: str, source: Source, cards: Sequence[Arch]) -> Binary:
    """A static library: every member is judged by itself, so linked and relocatable members do not hide each other."""
    whole = Binary(path)
    for name, offset, length in members(source):
        part = read_binary(name, PartSource(source, offset, length), cards)
        whole.units += part.judged()
        whole.doubts += [f"{name}: {doubt}" for doubt in part.doubts]
        whole.machine = whole.machine or part.machine
    if any(u.place is not Place.RELOCATABLE for u in whole.units):
        whole.units = [
            Units(u.images, Place.USUAL, u.count, u.empty, u.section) if u.place is Place.RELOCATABLE else u
            for u in whole.units
        ]
    return whole


def _tell_apart(
    binary: Binary, found: Found, table: list[Section], source: Source | None, cards: Sequence[Arch]
) -> None:
    if found.overflow:
        binary.doubts.append(f"it holds more code units than can be counted (stopped at {found.total})")
    if found.damaged:
        binary.doubts.append(f"a fat binary is damaged at byte {found.damaged[0]}")
    spans = sorted((s.offset, s.offset + s.size, s.name) for s in table if s.type != elf.SHT_NOBITS and s.size)
    for (raws, empty), offsets in found.units.items():
        images = tuple(decode(raw) for raw in raws)
        for section, members_ in _by_section(offsets, spans).items():
            place = (
                Place.RELOCATABLE
                if section == _RELOCATABLE_SECTION
                else Place.USUAL
                if section in _USUAL or not table
                else Place.ELSEWHERE
            )
            count = len(members_)
            hollow = count if empty else 0
            looked_at = place is not Place.ELSEWHERE or len(offsets) <= _FEW
            if not empty and source is not None and looked_at and _matters(images, cards):
                hollow = sum(not kernels.has_kernel(source, offset) for offset in members_)
            binary.units.append(Units(images, place, count, hollow, section))


def _matters(images: tuple[Image, ...], cards: Sequence[Arch]) -> bool:
    """Whether some card has no SASS here, so that it matters whether there is anything to run at all."""
    return any(means_of(images, card)[0] is not Means.SASS for card in cards)


def _by_section(offsets: Iterable[int], spans: list[tuple[int, int, str]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    index = 0
    for offset in sorted(offsets):
        while index < len(spans) and spans[index][1] <= offset:
            index += 1
        inside = index < len(spans) and spans[index][0] <= offset
        found.setdefault(spans[index][2] if inside else "", []).append(offset)
    return found
