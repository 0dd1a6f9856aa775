"""Wheels that lie elsewhere: as little is fetched as an answer takes, and what was not seen is said."""

import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.audit.arch import Arch
from envbuilder.audit.audit import audit
from envbuilder.audit.cards import find_card
from envbuilder.audit.remote import RemoteWheel, WheelList, collect_list
from envbuilder.errors import SourceError
from envbuilder.report.model import Verdict

DATA = Path(__file__).parents[2] / "data" / "fatbin"
CARDS = [Arch(6, 1)]
PADDING = 3 << 20


class StandInRanges:
    """A file on a server that serves parts, without the server."""

    near = False

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self.size = len(self._data)

    def read(self, start: int, length: int) -> bytes:
        return self._data[start : start + length]

    def stream(self, start: int, length: int) -> Iterator[bytes]:
        for offset in range(start, start + length, 65536):
            yield self._data[offset : min(offset + 65536, start + length)]


def wheel(tmp_path: Path, name: str, files: dict[str, str], padding: int = 0) -> RemoteWheel:
    path = tmp_path / f"{name}-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for inside, fixture in files.items():
            archive.writestr(inside, (DATA / fixture).read_bytes() + os.urandom(padding))
    return RemoteWheel(name, "1.0", path.name, lambda: StandInRanges(path))


def never() -> StandInRanges:
    raise AssertionError("a pure wheel was opened")


def test_a_no_is_found_early(tmp_path: Path) -> None:
    bad = wheel(tmp_path, "bad", {"bad/a.so": "sm70.so"}, PADDING)
    collection, fetched, total = collect_list("r.txt", WheelList((bad,)), CARDS)
    assert total > PADDING
    assert fetched < 1 << 20
    assert collection.binaries[0].cut


def test_a_yes_takes_the_whole_library(tmp_path: Path) -> None:
    good = wheel(tmp_path, "good", {"good/a.so": "sm61.so"}, PADDING)
    collection, fetched, _ = collect_list("r.txt", WheelList((good,)), CARDS)
    assert fetched > PADDING
    assert not collection.binaries[0].cut


def test_relocatable_code_settles_nothing(tmp_path: Path) -> None:
    both = wheel(tmp_path, "both", {"both/a.so": "rdc_linked.so"}, PADDING)
    collection, _, _ = collect_list("r.txt", WheelList((both,)), [Arch(8, 0)])
    (binary,) = collection.binaries
    assert binary.units[-1].count == 1
    assert len(binary.units) == 2  # it went past the relocatable images to the linked ones


def test_only_the_beginning_of_a_large_library_is_no_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envbuilder.audit.remote.HEAD", 1 << 20)
    good = wheel(tmp_path, "good", {"good/a.so": "sm61.so"}, PADDING)
    listed = tmp_path / "r.txt"
    listed.touch()
    report = audit([str(listed)], find_card("p40"), locate=lambda _: WheelList((good,)))
    assert report.verdict is Verdict.UNKNOWN
    assert "of 1 libraries only the beginning" in report.summary


def test_pure_wheels_are_not_opened_and_the_unseen_is_said(tmp_path: Path) -> None:
    def broken() -> StandInRanges:
        raise SourceError("its server does not serve parts of it (status 200)")

    pure = RemoteWheel("pure", "1", "pure-1-py3-none-any.whl", never)
    other = RemoteWheel("other", "1", "other-1-cp311-cp311-linux_x86_64.whl", broken)
    listed = tmp_path / "r.txt"
    listed.touch()
    found = WheelList((pure, other), ("mine: named by its address, not by an index",))
    report = audit([str(listed)], find_card("p40"), locate=lambda _: found)
    assert report.verdict is Verdict.UNKNOWN
    (finding,) = report.findings
    assert finding.rule == "not-seen"
    assert len(finding.evidence) == 2
