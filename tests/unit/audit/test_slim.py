"""Slim: what a card can never run becomes zeros, files stay valid, RECORD follows, other cards are refused."""

import base64
import hashlib
import json
import os
from pathlib import Path

import pytest

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import read_binary
from envbuilder.audit.cards import find_card
from envbuilder.audit.judge import Answer, judge
from envbuilder.audit.owners import record_lines
from envbuilder.audit.punch import punch_folder
from envbuilder.audit.slim import RECORD_NAME, main, read_record, refuse_other_card, slim_tree
from envbuilder.audit.sources import FileSource
from envbuilder.errors import EnvbuilderError, HostError, InputError

DATA = Path(__file__).parents[2] / "data" / "fatbin"
SM_61 = Arch(6, 1)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An environment with stand-ins under the real names: torch may be changed, cuBLAS and vLLM may not."""
    root = tmp_path / "site"
    for package, files in {
        "torch-2.6.0": {
            "torch/lib/libtorch_cuda.so": "sm60_61_70_80.so",
            "torch/lib/libcublas.so.12": "sm60_61_70_80.so",
            "torch/_C.so": "rdc_linked.so",
            "torch/lib/libother.so": "sm70_ptx70.so",
        },
        "nvidia_cublas_cu12-12.4.5.8": {"nvidia/cublas/lib/libcublas.so.12": "sm60_61_70_80.so"},
        "vllm-0.8.5": {"vllm/_C.so": "sm60_61_70_80.so"},
    }.items():
        lines = []
        for path, fixture in files.items():
            data = (DATA / fixture).read_bytes()
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            lines.append(f"{path},sha256={_digest(data)},{len(data)}")
        info = root / f"{package}.dist-info"
        info.mkdir()
        (info / "RECORD").write_text("\n".join([*lines, f"{info.name}/RECORD,,"]) + "\n")
    return root


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _answer(path: Path, card: str) -> Answer:
    with FileSource(path) as source:
        return judge(read_binary(path.name, source, [find_card(card).arch]), find_card(card)).answer


def test_only_what_may_be_changed_is_blanked(site: Path) -> None:
    record = slim_tree(site, SM_61)
    assert [f.path for f in record.files] == ["torch/_C.so", "torch/lib/libtorch_cuda.so"]
    untouched = (DATA / "sm60_61_70_80.so").read_bytes()
    for path in ("torch/lib/libcublas.so.12", "nvidia/cublas/lib/libcublas.so.12", "vllm/_C.so"):
        assert (site / path).read_bytes() == untouched
    slimmed = (site / "torch/lib/libtorch_cuda.so").read_bytes()
    assert len(slimmed) == len(untouched)
    assert slimmed.count(0) > untouched.count(0) + 10_000
    # Nothing for the card is in it, so blanking would gain nothing and hide what there is.
    assert (site / "torch/lib/libother.so").read_bytes() == (DATA / "sm70_ptx70.so").read_bytes()


def test_the_card_is_served_and_no_other(site: Path) -> None:
    slim_tree(site, SM_61)
    path = site / "torch/lib/libtorch_cuda.so"
    assert [_answer(path, card) for card in ("sm_60", "sm_61", "sm_70", "sm_80")] == [
        Answer.YES,  # sm_60 code runs on 6.1, so it stays
        Answer.YES,
        Answer.NO,
        Answer.NO,
    ]


def test_record_follows_and_the_rest_of_it_stays(site: Path) -> None:
    before = dict(record_lines((site / "torch-2.6.0.dist-info/RECORD").read_text()))
    slim_tree(site, SM_61)
    text = (site / "torch-2.6.0.dist-info/RECORD").read_text()
    after = dict(record_lines(text))
    assert list(before) == list(after)
    for path, said in after.items():
        if said:
            assert said == f"sha256={_digest((site / path).read_bytes())}"
    assert f"{(site / 'torch/_C.so').stat().st_size}\n" in text


def test_a_second_run_does_nothing(site: Path) -> None:
    first = slim_tree(site, SM_61)
    bytes_before = {p: p.read_bytes() for p in site.rglob("*") if p.is_file()}
    assert slim_tree(site, SM_61) == first
    assert {p: p.read_bytes() for p in site.rglob("*") if p.is_file()} == bytes_before


def test_a_hard_link_into_a_cache_leaves_the_cache_alone(site: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cached.so"
    os.link(site / "torch/lib/libtorch_cuda.so", cached)
    slim_tree(site, SM_61)
    assert cached.read_bytes() == (DATA / "sm60_61_70_80.so").read_bytes()


def test_what_was_done_is_written_down_and_another_card_is_refused(site: Path) -> None:
    record = slim_tree(site, SM_61)
    data = json.loads((site / RECORD_NAME).read_text())
    assert data["card"] == {"sm": "sm_61", "capability": "6.1"}
    assert read_record(site) == record
    with pytest.raises(InputError, match="slimmed for sm_61"):
        slim_tree(site, Arch(7, 0))
    refuse_other_card(record, (6, 1))
    with pytest.raises(HostError, match="slimmed for sm_61 and cannot serve Tesla T4, which is sm_75"):
        refuse_other_card(record, (7, 5), "Tesla T4")


@pytest.mark.parametrize("spoil", ["{", "[]", '{"card": {"sm": "sm_61"}, "files": [{"path": 1}]}'])
def test_a_damaged_record_stops_the_work(site: Path, spoil: str) -> None:
    (site / RECORD_NAME).write_text(spoil)
    with pytest.raises(InputError, match="damaged"):
        slim_tree(site, SM_61)


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no installed package"):
        slim_tree(tmp_path, SM_61)
    with pytest.raises(InputError, match="no such folder"):
        slim_tree(tmp_path / "missing", SM_61)


def test_a_record_that_points_outside_is_not_followed(site: Path, tmp_path: Path) -> None:
    outside = tmp_path / "torch" / "lib" / "libtorch_cuda.so"
    outside.parent.mkdir(parents=True)
    outside.write_bytes((DATA / "sm60_61_70_80.so").read_bytes())
    record = site / "torch-2.6.0.dist-info" / "RECORD"
    record.write_text(record.read_text() + "torch/../../torch/lib/libtorch_cuda.so,,\n")
    slim_tree(site, SM_61)
    assert outside.read_bytes() == (DATA / "sm60_61_70_80.so").read_bytes()


def test_a_full_disk_leaves_the_file_as_it_was(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("envbuilder.audit.blank.os.fsync", full)
    with pytest.raises(EnvbuilderError, match="No space left"):
        slim_tree(site, SM_61)
    assert (site / "torch/lib/libtorch_cuda.so").read_bytes() == (DATA / "sm60_61_70_80.so").read_bytes()
    assert not list(site.rglob(".*.so.*"))


def test_the_module_serves_image_builds(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(site), "sm_61"]) == 0
    assert "kept for sm_61" in capsys.readouterr().out
    assert main([str(site), "sm_70"]) == 2
    assert "slimmed for sm_61" in capsys.readouterr().err
    assert main([str(site)]) == 2


def test_holes_are_punched_into_a_copy_and_its_bytes_stay(site: Path, tmp_path: Path) -> None:
    slim_tree(site, SM_61)
    copy = tmp_path / "store"
    for path in (p for p in site.rglob("*") if p.is_file()):
        target = copy / "opt" / "venv" / path.relative_to(site)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    library = copy / "opt/venv/torch/lib/libtorch_cuda.so"
    before, times = library.read_bytes(), library.stat().st_mtime_ns
    saved = punch_folder(copy)
    assert saved >= 8192
    assert library.read_bytes() == before
    assert library.stat().st_mtime_ns == times
    assert punch_folder(copy) == 0
