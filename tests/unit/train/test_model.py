"""Model folders: complete ones pass, each way of being broken is named; getting one from a hub on loopback."""

import contextlib
import hashlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_httpserver import HTTPServer

from envbuilder.cli import run
from envbuilder.errors import InputError, IntegrityError
from envbuilder.report import Verdict
from envbuilder.report.progress import Silent
from envbuilder.stack.gpu import load_gpu
from envbuilder.train.known_models import KnownModel, known_model_names, load_known_model
from envbuilder.train.modelcheck import check_model
from envbuilder.train.modelget import get_model
from envbuilder.train.safetensors_header import read_header

P40 = load_gpu("p40")
CONFIG = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 8, "hidden_size": 4}


def weights(path: Path, dtype: str = "F32", shape: tuple[int, ...] = (8, 4), cut: int = 0) -> None:
    size = {"F32": 4, "BF16": 2}[dtype]
    for n in shape:
        size *= n
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": dtype, "shape": list(shape), "data_offsets": [0, size]}}
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + b"\0" * (size - cut))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model folder: a stand-in for the plumbing."""
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"[UNK]": 0, "1+1": 1}, unk_token="[UNK]")).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    weights(tmp_path / "model.safetensors")
    return tmp_path


def rules(folder: Path) -> set[str]:
    return {finding.rule for finding in check_model(folder, P40).findings}


def test_a_whole_model_passes(folder: Path) -> None:
    report = check_model(folder, P40)
    assert report.verdict is Verdict.YES
    assert report.findings == ()


def test_bf16_weights_are_no_fault_but_advice(folder: Path) -> None:
    weights(folder / "model.safetensors", "BF16")
    report = check_model(folder, P40)
    assert report.verdict is Verdict.YES
    assert [f.rule for f in report.findings] == ["model-dtype"]
    assert "float32" in report.findings[0].cure


def test_each_way_of_being_broken_is_named(folder: Path) -> None:
    weights(folder / "model.safetensors", cut=3)
    assert rules(folder) == {"model-shard-broken"}
    (folder / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "Git LFS" in check_model(folder, P40).findings[0].title
    (folder / "model.safetensors").unlink()
    assert rules(folder) == {"model-shard-missing"}
    weights(folder / "model.safetensors", shape=(9, 4))
    assert rules(folder) == {"model-shape"}
    weights(folder / "model.safetensors")
    (folder / "tokenizer_config.json").write_text("{}")
    assert rules(folder) == {"model-tokenizer"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    (folder / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 1}))
    assert "model-vocabulary" in rules(folder)
    (folder / "config.json").write_text("{")
    assert "model-config-broken" in rules(folder)
    (folder / "config.json").unlink()
    assert "model-config-missing" in rules(folder)


def test_a_sharded_model_names_the_shard_that_is_missing(folder: Path) -> None:
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    weights(folder / "model-00001-of-00002.safetensors")
    [finding] = check_model(folder, P40).findings
    assert finding.title == "model-00002-of-00002.safetensors is missing"


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_header_reader(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(data)
    with contextlib.suppress(InputError):
        read_header(path)


def test_known_models_load() -> None:
    assert known_model_names() == ["qwen2.5-0.5b-instruct"]
    assert sum(f.size for f in load_known_model("qwen2.5-0.5b-instruct").file) > 990_000_000


def small(files: dict[str, bytes]) -> KnownModel:
    entries = tuple({"path": n, "size": len(b), "sha256": hashlib.sha256(b).hexdigest()} for n, b in files.items())
    return KnownModel.model_validate(
        {"schema": 1, "repository": "a/b", "revision": "0" * 40, "licence": "x", "source": "x", "file": entries}
    )


def test_get_takes_the_mirror_verifies_and_costs_nothing_twice(
    tmp_path: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", httpserver.url_for(""))
    model = small({"config.json": b"{}", "model.safetensors": b"1234"})
    for name, content in (("config.json", b"{}"), ("model.safetensors", b"1234")):
        httpserver.expect_oneshot_request(f"/a/b/resolve/{'0' * 40}/{name}").respond_with_data(content)
    folder = get_model(model, tmp_path / "out", Silent())
    assert (folder / "model.safetensors").read_bytes() == b"1234"
    asked = len(httpserver.log)
    assert get_model(model, tmp_path / "out", Silent()) == folder
    assert len(httpserver.log) == asked


def test_a_mirror_that_lies_is_named(tmp_path: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_ENDPOINT", httpserver.url_for(""))
    httpserver.expect_request(f"/a/b/resolve/{'0' * 40}/config.json").respond_with_data(b"[]")
    with pytest.raises(IntegrityError, match=r"localhost|127\.0\.0\.1"):
        get_model(small({"config.json": b"{}"}), tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["model", "check", "nowhere"], 2, "no such folder"),
        (["model", "get", "gpt5", "--out", "o"], 2, "Known: qwen2.5"),
        (["plan", "--model", "nowhere"], 2, "no config.json"),
    ],
)
def test_the_commands_answer_people(capsys: pytest.CaptureFixture[str], args: list[str], code: int, says: str) -> None:
    assert run(args) == code
    assert says in capsys.readouterr().err


def test_an_endpoint_that_is_none_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "mirror")
    assert run(["model", "get", "qwen2.5-0.5b-instruct", "--out", str(tmp_path)]) == 2
    assert "HF_ENDPOINT" in capsys.readouterr().err
