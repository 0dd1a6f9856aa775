"""No input is a traceback: files of every kind under every name, cut, scrambled or binary."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envbuilder.diagnose.lint import lint, lint_text
from envbuilder.diagnose.lint.formats import READERS
from envbuilder.errors import InputError

DATA = Path(__file__).parents[3] / "data"
INPUTS = sorted((DATA / "cases" / "inputs").iterdir())
NAMES = {
    "dockerfile": "Dockerfile",
    "requirements": "requirements.txt",
    "environment": "environment.yml",
    "pyproject": "pyproject.toml",
    "conda-lock": "conda-lock.yml",
    "python-lock": "uv.lock",
    "compose": "compose.yaml",
    "verl-settings": "a.verl.yaml",
    "script": "run.sh",
    "stack": "a.stack.toml",
    "build-file": "CMakeLists.txt",
    "listing": "a.tree.txt",
    "data-schema": "a.schema.json",
}
WORDS = r"""
FROM RUN ARG ENV pip install torch==2.6.0+cu118 torch>=2 -U -r -c -e --index-url https://download.pytorch.org/whl/cu118
apex git+https://github.com/NVIDIA/apex@25.04 && || ; | > < ( ) { } [ ] $X ${X%.*} $(echo a) ` ' " \ # = == === : -
name: dependencies: channels: services: package: - pip: conda micromamba python setup.py cd TORCH_CUDA_ARCH_LIST=6.1
actor_rollout_ref.rollout.name=hf python3 -m verl.trainer.main_ppo -gencode arch=compute_86,code=sm_86 <<EOF EOF
nvidia/cuda:11.8 ubuntu:20.04 [target] gpus = ["P40"] {"columns": null} 1.1G ./a.pt é 中
"""
TOKENS = [*WORDS.split(), "\x00", "\t", "  "]


def test_every_format_is_fuzzed() -> None:
    assert set(NAMES) == set(READERS)


@pytest.mark.parametrize("kind", NAMES)
@given(words=st.lists(st.sampled_from([*TOKENS, "\n"]), max_size=60))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_scrambled_words_are_no_crash(kind: str, words: list[str]) -> None:
    lint_text(NAMES[kind], " ".join(words), kind=kind)


@pytest.mark.parametrize("kind", NAMES)
@given(text=st.text(max_size=200))
@settings(max_examples=25, deadline=None)
def test_any_text_is_no_crash(kind: str, text: str) -> None:
    lint_text(NAMES[kind], text, kind=kind)


@pytest.mark.parametrize("path", INPUTS, ids=[p.name for p in INPUTS])
def test_every_input_of_the_cases_under_every_name(path: Path) -> None:
    text = path.read_text(errors="replace")
    cuts = random.Random(path.name)
    for kind, name in NAMES.items():
        lint_text(name, text, kind=kind)
        lint_text(name, text[: cuts.randrange(len(text) + 1)], kind=kind, lang="zh")


def test_deep_nesting_is_no_crash() -> None:
    for kind, text in (
        ("script", "(" * 4000 + "a" + ")" * 4000),
        ("compose", "[" * 4000),
        ("data-schema", "{'a':" * 3000),
        ("pyproject", "a = " + "[" * 3000),
        ("dockerfile", "FROM a\nRUN " + "$(" * 3000),
    ):
        lint_text(NAMES[kind], text, kind=kind)


def test_binary_and_empty_files_are_not_understood(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(b"\x7fELF\x00\x01" * 100)
    (tmp_path / "notes.txt").write_bytes(b"")
    done = lint([tmp_path / "Dockerfile", tmp_path / "notes.txt"])
    assert len(done.unknown) == 2
    assert not done.findings


def test_other_encodings_are_read(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    for encoding in ("utf-8-sig", "utf-16", "latin-1"):
        path.write_bytes("# é\napex\n".encode(encoding))
        assert [f.rule for f in lint([path]).findings] == ["apex-from-default-index"], encoding


def test_a_missing_file_is_an_error_for_people(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        lint([tmp_path / "nothing"])


def test_a_redirection_behind_a_list_is_the_last_commands() -> None:
    result = lint_text("setup.sh", "apt-get update && pip3 install torch>=2.0 numpy==1.26.4\n")
    assert "shell-unquoted-specifier" in [f.rule for f in result.findings]
    assert not lint_text("setup.sh", "make all && pip install numpy==1.26.4 > log.txt 2>&1\n").findings


def test_a_lone_backslash_is_no_instruction() -> None:
    assert [f.rule for f in lint_text(NAMES["dockerfile"], "\\", kind="dockerfile").findings] == [
        "dockerfile-unparsable"
    ]
