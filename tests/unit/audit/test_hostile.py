"""Parsers take hostile input: no crash, no hang, and no memory that depends on what a header claims."""

import io
import struct
import time
import tracemalloc
import zipfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, read_binary, read_stream
from envbuilder.audit.cards import find_card
from envbuilder.audit.judge import Answer, judge
from envbuilder.audit.sources import BytesSource
from envbuilder.audit.wheel import inflate

DATA = Path(__file__).parents[2] / "data" / "fatbin"
CARDS = [Arch(6, 1), Arch(9, 0)]
FIXTURES = sorted(p.name for p in DATA.iterdir() if p.suffix in (".so", ".o", ".a", ".cubin", ".fatbin", ".ptx"))
QUICK = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
MIB = 1 << 20


def scan(data: bytes) -> Binary:
    binary = read_binary("x.so", BytesSource(data), CARDS)
    judge(binary, find_card("sm_61")).sentence()
    return binary


def header(size: int) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, size)


def entry(kind: int, arch: int, stored: int, packed: int = 0, flags: int = 0x11, unpacked: int = 0) -> bytes:
    fields = (kind, 0x0101, 64, stored, packed, 0, 7, 1, arch, 0, 0, flags, 0, unpacked)
    return struct.pack("<HHIQIIHHIIIQQQ", *fields)


@QUICK
@given(st.sampled_from(FIXTURES), st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=16)), max_size=8))
def test_fixtures_with_bytes_overwritten(name: str, changes: list[tuple[int, bytes]]) -> None:
    data = bytearray((DATA / name).read_bytes())
    for where, what in changes:
        where %= len(data)
        data[where : where + len(what)] = what
    scan(bytes(data))
    read_stream("x.so", iter([bytes(data)]), len(data))


@QUICK
@given(st.sampled_from(FIXTURES), st.integers(0), st.integers(1, 5000))
def test_fixtures_cut_short(name: str, where: int, step: int) -> None:
    data = (DATA / name).read_bytes()
    data = data[: where % (len(data) + 1)]
    scan(data)
    read_stream("x.so", (data[i : i + step] for i in range(0, len(data), step)), len(data))


@QUICK
@given(
    st.lists(
        st.builds(
            entry,
            st.integers(0, 65535),
            st.integers(0, 2**32 - 1),
            st.integers(0, 2**64 - 1) | st.integers(0, 200),
            st.integers(0, 2**32 - 1) | st.integers(0, 200),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
        ),
        max_size=6,
    ),
    st.binary(max_size=300),
)
def test_fat_binaries_of_any_fields(entries: list[bytes], rest: bytes) -> None:
    body = b"".join(entries) + rest
    scan(header(len(body)) + body)
    scan(header(2**63) + body)


@QUICK
@given(st.binary(max_size=3000))
def test_anything_at_all(data: bytes) -> None:
    scan(data)
    list(inflate(iter([data]), 1 << 20))


def test_a_claim_of_gigabytes_takes_no_memory() -> None:
    huge = header(2**62) + entry(2, 61, 2**61, 2**31, 0x2011, 2**60)
    zstd = header(200) + entry(2, 61, 100, 90, 0x8011, 1 << 20) + b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 95
    tracemalloc.start()
    for data in (huge, zstd):
        scan(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * MIB


def test_a_file_made_of_beginnings_ends_soon() -> None:
    """Each false beginning costs the same few steps. The limit is generous: it tells minutes from seconds."""
    for piece in (b"\x7fELF\x02\x01\x01", b"\x50\xed\x55\xba", b".version 7.8\n.target sm_61\n\0"):
        started = time.monotonic()
        binary = read_binary("x.bin", BytesSource(piece * (MIB // 2 // len(piece))), [])
        assert time.monotonic() - started < 30
        assert not binary.units or binary.units[0].count > 1000


def test_more_units_than_can_be_counted_is_unknown() -> None:
    unit = header(64) + entry(2, 61, 0)
    kinds = b"".join(header(64) + entry(2, 1000 + number, 0) for number in range(1 << 14))
    binary = read_binary("x.bin", BytesSource(kinds + unit * 10), [])
    assert any("more code units" in doubt for doubt in binary.doubts)
    assert judge(binary, find_card("sm_61")).answer in (Answer.NO, Answer.UNKNOWN)


def test_an_unknown_kind_is_unknown_and_never_no() -> None:
    binary = scan(header(64) + entry(64, 61, 0))
    assert judge(binary, find_card("sm_61")).answer is Answer.UNKNOWN


def test_a_deflate_bomb_ends_at_what_the_directory_says() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.so", bytes(64 * MIB))
    with zipfile.ZipFile(packed) as archive:
        (member,) = archive.infolist()
        start = 30 + len(member.filename)
        raw = packed.getvalue()[start : start + member.compress_size]
    assert sum(len(chunk) for chunk in inflate(iter([raw]), 3 * MIB)) <= 4 * MIB
