"""``envbuilder compat``: what runs, what is the newest, what to take instead; never more than the tables know."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from envbuilder.cli import group


def run(*words: str) -> Result:
    return CliRunner().invoke(group, ["compat", *words], prog_name="envbuilder", standalone_mode=False)


def test_the_newest_build_for_a_p40() -> None:
    result = run("--gpu", "p40", "--json")
    assert result.return_value == 0
    report = json.loads(result.output)
    assert report["facts"]["newest"] == "2.14.0+cu126"
    assert {f"{r['torch']}+{r['cuda']}" for r in report["facts"]["runs"]} >= {
        "2.6.0+cu118",
        "2.7.1+cu118",
        "2.13.0+cu126",
    }
    assert all(r["source"] for r in report["facts"]["runs"])
    assert not any(r["cuda"] in ("cu128", "cu129", "cu130") for r in report["facts"]["runs"])


def test_flash_attention_cannot_run_and_the_answer_says_what_to_take() -> None:
    result = run("--torch", "2.9", "--want", "flash-attn")
    assert result.return_value == 1
    assert "sdpa" in result.output
    assert "2.9.1+cu126" in result.output
    assert "2.9.1+cu128 holds sm_70 and up" in result.output


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--torch", "2.15"), 1, "2.14.0+cu126"),
        (("--torch", "3.1"), 3, "no claim that it cannot run"),
        (("--torch", "2.8.0+cu128"), 1, "holds sm_70"),
        (("--torch", "2.6.0+cu121"), 1, "never published"),
        (("--want", "no-such-thing"), 3, "nothing is known of no-such-thing"),
        (("--want", "vllm"), 1, "rollout.name=hf"),
        (("--want", "xformers==0.0.29.post2", "--torch", "2.6.0"), 0, "0.0.29.post2"),
        (("--want", "xformers==0.0.28.post3", "--torch", "2.6.0"), 1, "was built for torch 2.5.1"),
        (("--want", "verl"), 0, "0.5.0"),
        (("--want", "verl==9.9"), 3, "nothing is known of verl 9.9"),
        (("--driver", "470.82.01"), 0, "2.7.1+cu118"),
        (("--driver", "470.82.01", "--torch", "2.8"), 1, "needs a newer driver"),
        (("--driver", "590.10"), 0, "go back to branch 580"),
        (("--gpu", "H100"), 0, "2.7"),
        (("--gpu", "p40,RTX 3090", "--torch", "2.7.1"), 0, "cu118, cu126"),
    ],
)
def test_answers(words: tuple[str, ...], code: int, says: str) -> None:
    result = run(*words)
    assert result.return_value == code, result.output
    assert says in result.output


def test_a_probe(tmp_path: Path) -> None:
    path = tmp_path / "host.json"
    path.write_text(
        '{"driver": "580.95.05", "gpus": [{"name": "Tesla P40", "cc": "6.1"}], "request": {"torch": "auto"}}'
    )
    assert "2.14.0+cu126" in run("--probe", str(path)).output
    path.write_text('{"gpus": [{"name": "Tesla P40"}], "request": {"torch": "2.6.0"}}')
    assert "cu118, cu124, cu126" in run("--probe", str(path)).output


@pytest.mark.parametrize("text", ["", "[]", "{", '{"gpus": 3}', '{"gpus": [{"name": "voodoo"}]}', "\x00"])
def test_a_wrong_probe_is_an_error_for_people(tmp_path: Path, text: str) -> None:
    path = tmp_path / "host.json"
    path.write_text(text)
    result = run("--probe", str(path))
    assert result.exception is not None
    assert getattr(result.exception, "exit_code", None) in (2, 3)


def test_wrong_use() -> None:
    for words in (("--gpu", "voodoo2"), ("--want", "==="), ("--probe", "/nothing/there")):
        assert getattr(run(*words).exception, "exit_code", None) == 2, words
