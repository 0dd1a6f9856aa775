"""The command: exit codes, formats, fixes, suppression, cards, folders."""

import json
import time
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from envbuilder.cli import group

PLACE = {
    "properties": {
        "artifactLocation": {"properties": {"uri": {"pattern": "^[^ \\\\]+$"}}},
        "region": {"properties": {"startLine": {"minimum": 1}}},
    }
}
# The parts of SARIF 2.1.0 (OASIS, sections 3.13 to 3.30) that the presenter writes.
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "properties": {
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool", "results"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "required": ["name"],
                                "properties": {"rules": {"type": "array", "uniqueItems": True}},
                            }
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "required": ["message", "ruleId"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "level": {"enum": ["none", "note", "warning", "error"]},
                                "message": {"required": ["text"], "properties": {"text": {"minLength": 1}}},
                                "locations": {"items": {"properties": {"physicalLocation": PLACE}}},
                            },
                        },
                    },
                },
            },
        },
    },
}


def run(*words: str) -> Result:
    return CliRunner().invoke(group, ["lint", *words], prog_name="envbuilder", standalone_mode=False)


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a b" / "requirements.txt"
    path.parent.mkdir()
    path.write_text("torch==2.6.0+cu118 numpy==1.26.4\napex\n")
    return path


def test_exit_codes(faulty: Path, tmp_path: Path) -> None:
    assert run(str(faulty)).return_value == 1
    (tmp_path / "compose.yaml").write_text("services: {a: {image: x, command: ray start, gpus: all}}\n")
    assert run("compose.yaml").return_value == 0, "advice is no fault"
    (tmp_path / "notes.md").write_text("x")
    assert run("notes.md").return_value == 3


def test_json_names_places_and_rules(faulty: Path) -> None:
    report = json.loads(run(str(faulty), "--json").output)
    assert {(f["rule"], f["place"]["line"]) for f in report["findings"]} >= {
        ("requirements-several-on-a-line", 1),
        ("apex-from-default-index", 2),
    }
    assert report["facts"]["files"][0]["format"] == "requirements"


def test_sarif_is_valid(faulty: Path) -> None:
    document = json.loads(run(str(faulty.relative_to(Path.cwd())), "--format", "sarif").output)
    jsonschema.validate(document, SARIF)
    place = document["runs"][0]["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "a%20b/requirements.txt"
    rules = {rule["id"] for rule in document["runs"][0]["tool"]["driver"]["rules"]}
    assert {result["ruleId"] for result in document["runs"][0]["results"]} == rules


def test_annotations_stand_on_one_line_each(faulty: Path) -> None:
    lines = run(str(faulty), "--format", "github").output.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("::error file=") and ",line=" in line for line in lines)


def test_fix_shows_a_diff_and_is_done_once(faulty: Path) -> None:
    first = run(str(faulty), "--fix")
    assert "+numpy==1.26.4" in first.stderr
    assert faulty.read_text() == "torch==2.6.0+cu118\nnumpy==1.26.4\napex\n"
    assert "+++" not in run(str(faulty), "--fix").stderr


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("run.sh", 'pip install -q numpy>=1.26 "torch==2.6.0"\n', 'pip install -q "numpy>=1.26" "torch==2.6.0"\n'),
        (
            "Dockerfile",
            "FROM nvidia/cuda:11.8-cudnn8-devel-ubuntu22.04\nARG V==2.6.0\nRUN pip install torch==$V -i https://x/simple\n",
            "FROM nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04\nARG V=2.6.0\nRUN pip install torch==$V -i https://x/simple\n",
        ),
        (
            "Dockerfile",
            "ARG V=3\nFROM ubuntu:22.04\nRUN echo $V\n",
            "ARG V=3\nFROM ubuntu:22.04\nARG V\nRUN echo $V\n",
        ),
        ("run.sh", "export CONDA_CUDA_OVERRIDE=11.8\n", "export CONDA_OVERRIDE_CUDA=11.8\n"),
    ],
)
def test_fixes(tmp_path: Path, name: str, before: str, after: str) -> None:
    path = tmp_path / name
    path.write_text(before)
    run(str(path), "--fix")
    assert path.read_text() == after
    run(str(path), "--fix")
    assert path.read_text() == after, "a second run changes nothing"


def test_a_suppression_needs_a_rule_and_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("apex  # envbuilder: ignore[apex-from-default-index] a private index serves ours\n")
    assert run(str(path)).return_value == 0
    path.write_text("# envbuilder: ignore[apex-from-default-index] a private index serves ours\napex\n")
    assert run(str(path)).return_value == 0
    path.write_text("apex  # envbuilder: ignore[apex-from-default-index]\n")
    assert "suppression-without-reason" in run(str(path)).output
    path.write_text("apex  # envbuilder: ignore some reason\n")
    assert "apex-from-default-index" in run(str(path)).output


def test_the_card_is_the_one_given_else_the_one_named_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.8.0\n")
    assert run(str(path)).return_value == 1
    assert run(str(path), "--gpu", "H100").return_value == 0
    assert run(str(path), "--gpu", "8.6").return_value == 0
    path.write_text("# GPU: RTX 4090\ntorch==2.8.0\n")
    assert run(str(path)).return_value == 0
    assert run(str(path), "--stack", "p40").return_value == 1
    assert isinstance(run(str(path), "--gpu", "P4000000").exception, Exception)


def test_a_context_without_dockerignore_is_measured(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM ubuntu:22.04\nCOPY . .\n")
    with (tmp_path / "model.safetensors").open("wb") as stream:
        stream.truncate(300 << 20)
    assert "context-without-dockerignore" in run(str(tmp_path)).output
    (tmp_path / ".dockerignore").write_text("*.safetensors\n")
    assert run(str(tmp_path)).return_value == 0


def test_a_repository_of_200_files_takes_under_two_seconds(tmp_path: Path) -> None:
    healthy = Path(__file__).parents[3] / "data" / "healthy"
    sources = sorted(p for p in healthy.iterdir() if p.name != "README.md")
    for number in range(200):
        source = sources[number % len(sources)]
        (tmp_path / f"d{number:03}").mkdir()
        (tmp_path / f"d{number:03}" / source.name).write_bytes(source.read_bytes())
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "requirements.txt").write_text("apex\n")
    started = time.process_time()
    assert run(str(tmp_path)).return_value == 0
    assert time.process_time() - started < 2


def test_chinese(faulty: Path) -> None:
    output = run(str(faulty), "--lang", "zh").output
    assert "供应链" in output
    assert "PyPI" in output


def test_secrets_in_a_file_are_not_printed(tmp_path: Path) -> None:
    path = tmp_path / "setup.sh"
    path.write_text("pip install torch -i https://me:s3cr3tpass@index.example/simple\nexport HF_TOKEN=hf_" + "a1B2" * 8)
    output = run(str(path)).output
    assert "secret-in-file" in output
    assert "s3cr3tpass" not in output
    assert "a1B2a1B2" not in output
