"""Stacks and GPU profiles: the committed ones hold, wrong ones are refused with file, key and cure."""

from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.data import builtin_root
from envbuilder.errors import InputError
from envbuilder.stack.compat.torch_builds import find_build, torch_builds
from envbuilder.stack.loading import load_stack, stack_names

P40 = (builtin_root() / "stacks" / "p40.toml").read_text()


@pytest.mark.parametrize("name", ["p40", "p40-debian"])
def test_committed_stacks_load_and_fit_their_card(name: str) -> None:
    stack, gpu = load_stack(name)
    assert stack.name == name
    assert gpu.sm == "sm_61"


def test_both_stacks_are_known() -> None:
    assert stack_names()[:2] == ["p40", "p40-debian"]


@pytest.mark.parametrize(
    ("old", "new", "field", "says"),
    [
        ('title = "CUDA', 'titel = "CUDA', "titel", "unknown key"),
        ("source_date_epoch = 1757289600", 'source_date_epoch = "soon"', "source_date_epoch", "valid integer"),
        ('version = "2.6.0+cu118"', 'version = "2.8.0"', "python.packages.torch.version", "no code for sm_61"),
        ('version = "2.6.0+cu118"', 'version = "9.9.0"', "python.packages.torch.version", "nothing is known"),
        ('dtype = "float32"', 'dtype = "bfloat16"', "compute.dtype", "does not compute in bfloat16"),
        ('dtype = "float32"', 'dtype = "float16"', "compute.dtype", "1/64"),
        ('attention = "eager"', 'attention = "flash_attention_2"', "compute.attention", "does not run"),
        ("compile = false", "compile = true", "compute.compile", "Triton"),
        ('toolkit = "11.8"', 'toolkit = "13.0"', "cuda.toolkit", "does not know sm_61"),
        ('commit = "379937e', 'commit = "zzz937e', "sources.apex.commit", "pattern"),
        ('gpu = "p40"', 'gpu = "p4000"', "", "no gpu named"),
    ],
)
def test_a_wrong_stack_is_refused_with_its_key(tmp_path: Path, old: str, new: str, field: str, says: str) -> None:
    assert old in P40
    path = tmp_path / "p40.toml"
    path.write_text(P40.replace(old, new, 1))
    with pytest.raises(InputError) as caught:
        load_stack(str(path))
    error = caught.value
    assert says in error.message
    assert error.cure
    if field:
        assert error.place is not None
        assert error.place.field == field
        assert error.place.file == str(path)


def test_a_typo_names_the_near_key_and_its_line(tmp_path: Path) -> None:
    path = tmp_path / "p40.toml"
    path.write_text(P40.replace('why = "float32 is', 'wy = "float32 is'))
    with pytest.raises(InputError) as caught:
        load_stack(str(path))
    assert caught.value.cure is not None
    line = next(n for n, text in enumerate(path.read_text().splitlines(), 1) if text.startswith("wy ="))
    assert caught.value.place is not None
    assert caught.value.place.line == line
    assert caught.value.place.field == "compute.wy"
    assert "'why'" in caught.value.cure


def test_torch_table_rows_have_sources_and_no_two_rows_disagree() -> None:
    seen: set[tuple[str, str]] = set()
    for row in torch_builds():
        assert row.source
        for version in row.torch:
            assert (version, row.cuda) not in seen
            seen.add((version, row.cuda))


@pytest.mark.parametrize(
    ("version", "capability", "runs"),
    [
        ("2.6.0", (6, 1), True),
        ("2.7.1+cu126", (6, 1), True),
        ("2.7.1+cu128", (6, 1), False),
        ("2.8.0", (6, 1), False),
        ("2.8.0+cu126", (6, 1), True),
        ("2.8.0", (7, 5), True),
        ("2.8.0+cu129", (12, 1), True),
    ],
)
def test_a_build_runs_where_its_code_says(version: str, capability: tuple[int, int], runs: bool) -> None:
    row = find_build(version)
    assert row is not None
    assert row.runs_on(capability) is runs


def test_the_list_and_the_explanation_name_every_pin(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stacks"]) == 0
    assert "p40-debian" in capsys.readouterr().out
    assert run(["stacks", "show", "p40"]) == 0
    out = capsys.readouterr().out
    stack, gpu = load_stack("p40")
    for name in (*stack.python.packages, *stack.sources, *(stack.conda.packages if stack.conda else ())):
        assert name in out
    for belief in gpu.belief:
        assert belief.claim[:40] in out
    assert run(["stacks", "show", "p41"]) == 2
    assert "Known: p40" in capsys.readouterr().err
