"""Files of known truth, for six cards: the table follows from how each was compiled (COMMANDS.txt)."""

from pathlib import Path

import pytest

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import Binary, read_binary, read_stream
from envbuilder.audit.cards import find_card
from envbuilder.audit.judge import Answer, judge
from envbuilder.audit.sources import BytesSource

DATA = Path(__file__).parents[2] / "data" / "fatbin"
CARDS = ("sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_90")
Y, J, N, U, Z = Answer.YES, Answer.JIT, Answer.NO, Answer.UNKNOWN, Answer.NO_CODE

# One answer for each of CARDS.
TRUTH = {
    "sm60.so": (Y, Y, N, N, N, N),
    "sm61.so": (N, Y, N, N, N, N),
    "sm52.so": (N, N, N, N, N, N),
    "sm70.so": (N, N, Y, Y, N, N),
    "sm60_ptx60.so": (Y, Y, J, J, J, J),
    "sm61_ptx61.so": (N, Y, J, J, J, J),
    "sm70_ptx70.so": (N, N, Y, Y, J, J),
    "sm70_ptx60.so": (J, J, Y, Y, J, J),
    "sm70_ptx50.so": (J, J, Y, Y, J, J),
    "ptx50.so": (J, J, J, J, J, J),
    "ptx61.so": (N, J, J, J, J, J),
    "ptx70.so": (N, N, J, J, J, J),
    "sm60_61_70_80.so": (Y, Y, Y, Y, Y, N),
    "sm61_nocompress.so": (N, Y, J, J, J, J),
    "sm61_compressall.so": (N, Y, J, J, J, J),
    "rdc.o": (N, Y, Y, Y, N, N),
    "k61.o": (N, Y, J, J, J, J),
    "kb70.o": (N, N, Y, Y, N, N),
    "k61.a": (N, Y, J, J, N, N),
    "mixed_tu.so": (N, N, J, J, N, N),
    "lto61.o": (U, U, U, U, U, U),
    "k61.cubin": (N, Y, N, N, N, N),
    "k61.ptx": (N, J, J, J, J, J),
    "k.fatbin": (N, Y, Y, Y, J, J),
    "embedded_ptx.so": (N, J, J, J, J, J),
    "host_only.so": (Z, Z, Z, Z, Z, Z),
    "k13_none.fatbin": (N, N, N, N, Y, Y),
    "k13_default.fatbin": (N, N, N, N, Y, Y),
    "k13_size.fatbin": (N, N, N, N, Y, Y),
    "k13_balance.fatbin": (N, N, N, N, Y, Y),
    "rdc_linked.so": (N, Y, Y, Y, N, N),
    "loose.o": (N, Y, Y, Y, J, J),
    "with_stub.so": (N, N, N, N, Y, N),  # the linker's stub for sm_75 is no code
    "with_empty.so": (N, N, N, N, Y, N),  # nor is a unit for 7.5 that holds a variable and no kernel
    "only_empty.so": (Z, Z, Z, Z, Z, Z),
    "rdc80_linked.so": (N, N, N, N, Y, N),  # PTX for 7.5 is in the relocatable images only, which do not run
}
# What TRUTH.tsv says of sm_61, in its words.
WORDS = {"yes": {Y, J}, "no": {N, Z}, "jit": {J}, "PARTIAL": {N}, "LTOIR61": {U}}


def scan(name: str) -> Binary:
    data = (DATA / name).read_bytes()
    return read_binary(name, BytesSource(data), [find_card(c).arch for c in CARDS])


def stream(name: str, step: int) -> Binary:
    data = (DATA / name).read_bytes()
    return read_stream(name, (data[i : i + step] for i in range(0, len(data), step)), len(data))


@pytest.mark.parametrize("name", TRUTH)
def test_every_fixture_is_right_for_every_card(name: str) -> None:
    binary = scan(name)
    assert tuple(judge(binary, find_card(card)).answer for card in CARDS) == TRUTH[name]


@pytest.mark.parametrize("name", [n for n in TRUTH if not n.endswith(".a")])
@pytest.mark.parametrize("step", [1000, 1 << 20])
def test_a_stream_says_what_the_file_says(name: str, step: int) -> None:
    passed, whole = stream(name, step), scan(name)
    assert passed.images() == whole.images()
    assert passed.linkage == whole.linkage
    for card in CARDS:
        assert judge(passed, find_card(card)) == judge(whole, find_card(card))


def test_the_table_covers_every_fixture_and_agrees_with_its_words() -> None:
    rows = dict(line.split("\t", 1) for line in (DATA / "TRUTH.tsv").read_text().splitlines())
    assert set(rows) <= set(TRUTH)
    for name, said in rows.items():
        assert TRUTH[name][CARDS.index("sm_61")] in WORDS[said.split()[0]], name


@pytest.mark.parametrize(
    ("name", "card", "sass"), [("sm60.so", "p40", "sm_60"), ("k13_size.fatbin", "sm_90", "sm_90a")]
)
def test_the_sass_that_would_run_is_named(name: str, card: str, sass: str) -> None:
    assert [a.sm for a in judge(scan(name), find_card(card)).sass] == [sass]


def test_suffixes_bind_code_to_one_architecture_or_one_family() -> None:
    binary = scan("k13_none.fatbin")
    answers = {c: judge(binary, find_card(c)) for c in ("sm_100", "sm_103", "sm_110", "sm_120", "sm_121")}
    assert [a.sm for a in answers["sm_100"].sass] == ["sm_100f"]
    assert [a.sm for a in answers["sm_103"].sass] == ["sm_100f"]
    assert answers["sm_110"].answer is Answer.JIT
    assert [a.sm for a in answers["sm_120"].sass] == ["sm_120a"]
    assert answers["sm_121"].answer is Answer.JIT  # sm_120a is for 12.0 alone, compute_80 is for all later ones


def test_jit_names_the_least_driver() -> None:
    assert judge(scan("ptx61.so"), find_card("p40")).driver == "520.61.05"


def test_units_without_kernels_do_not_count() -> None:
    for name in ("rdc_linked.so", "rdc80_linked.so", "with_stub.so", "with_empty.so"):
        assert judge(scan(name), find_card("sm_80")).units == 1, name
    verdict = judge(scan("mixed_tu.so"), find_card("p40"))
    assert (verdict.running, verdict.units) == (1, 2)


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("sm_61", Arch(6, 1)),
        ("6.1", Arch(6, 1)),
        ("61", Arch(6, 1)),
        ("compute_120a", Arch(12, 0, "a")),
        ("sm_9x", None),
        ("p40", None),
    ],
)
def test_spellings_of_an_architecture(text: str, arch: Arch | None) -> None:
    assert Arch.parse(text) == arch
