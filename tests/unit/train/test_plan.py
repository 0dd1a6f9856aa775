"""The memory plan against what was measured on a GPU."""

import json
from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.stack.gpu import load_gpu
from envbuilder.train.decoder_config import DecoderConfig
from envbuilder.train.plan import Setting, advice, make_plan

MEMORY = Path(__file__).parents[2] / "data" / "memory"
MEASURED = json.loads((MEMORY / "h200.json").read_text())
MAIN_PPO = json.loads((MEMORY / "main_ppo_h200.json").read_text())
QWEN = DecoderConfig(896, 4864, 24, 14, 2, 64, 151936, tied=True, qkv_bias=True)
P40 = load_gpu("p40")


def setting_of(row: dict[str, object]) -> Setting:
    keys = ("prompt", "response", "batch", "checkpointing", "attention")
    ours, saving = bool(row["ours"]), str(row.get("saving", ""))
    return Setting(
        **{k: row[k] for k in keys},  # type: ignore[arg-type]
        chunked=ours,
        fused_optimiser=ours,
        offload_optimiser="optimiser" in saving,
        offload_reference="reference" in saving,
        lora_rank=16 if "lora 16" in saving else 0,
        accumulates=row.get("sequences_a_step", row["batch"]) != row["batch"],
    )


def name(row: dict[str, object]) -> str:
    return "-".join(str(row.get(k, "")) for k in ("prompt", "batch", "checkpointing", "attention", "ours", "saving"))


@pytest.mark.parametrize("row", MEASURED, ids=name)
def test_the_peak_is_within_ten_percent_of_the_measured_one(row: dict[str, object]) -> None:
    setting = setting_of(row)
    plan = make_plan(QWEN, setting, P40)
    peaks: dict[str, int] = row["peaks"]  # type: ignore[assignment]
    assert setting.measured
    assert plan.peak == pytest.approx(max(peaks.values()), rel=0.10)


@pytest.mark.parametrize("row", MAIN_PPO, ids=name)
def test_that_of_the_whole_trainer_is_nearer(row: dict[str, object]) -> None:
    assert make_plan(QWEN, setting_of(row), P40).peak / 2**30 == pytest.approx(row["peak_gib"], rel=0.03)


def test_what_a_step_adds_to_rest_is_not_far_off_either() -> None:
    """Weights and states dominate the peak; this looks at what is left without them."""
    errors = []
    for row in MEASURED:
        plan = make_plan(QWEN, setting_of(row), P40)
        added = max(row["peaks"].values()) - row["at_rest"]
        errors.append(abs(plan.peak - plan.at_rest - added) / added)
    assert sum(errors) / len(errors) < 0.15
    assert max(errors) < 0.30


def test_the_parameter_count_is_the_published_one() -> None:
    assert QWEN.causal_lm == 494_032_768


def folder_of_qwen(tmp_path: Path) -> Path:
    config = {
        "model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_command_says_what_fits_and_what_to_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of_qwen(tmp_path)
    assert run(["plan", "--model", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "It fits" in out
    assert "an estimate, not a measurement" in out
    assert "8.26 s and 40 s a step" in out
    assert run(["plan", "--model", str(folder), "--batch", "16"]) == 1
    out = capsys.readouterr().out
    assert "It does not fit" in out
    assert "checkpointing" in out
    assert run(["plan", "--model", str(folder), "--batch", "16", "--checkpointing", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["fits"] is True


def test_every_change_advised_lowers_the_peak_of_a_large_setting() -> None:
    setting = Setting(512, 512, 8, chunked=False, fused_optimiser=False)
    before = make_plan(QWEN, setting, P40).peak
    assert all(plan.peak <= before for _, plan in advice(QWEN, setting, P40))


def test_the_floor_of_a_p40_is_below_the_published_steps() -> None:
    """8.26 s and 40 s a step are published for this card; a floor above them would be wrong."""
    assert 1.5 < sum(make_plan(QWEN, Setting(), P40).seconds.values()) < 8.26


def test_a_size_that_is_none_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = json.loads((folder_of_qwen(tmp_path) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": -896}))
    assert run(["plan", "--model", str(tmp_path)]) == 2
    assert "not above zero" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "measured"),
    [
        (["--offload", "optimiser"], True),
        (["--offload", "reference"], True),
        (["--lora", "16", "--stock"], True),
        (["--lora", "16"], False),
        (["--lora", "16", "--offload", "optimiser"], False),
        (["--offload", "optimiser", "--stock"], False),
    ],
)
def test_lora_and_offload_lower_the_peak_and_what_was_not_measured_is_named_an_estimate(
    more: list[str], measured: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of_qwen(tmp_path)
    stock = "--stock" in more
    before = make_plan(QWEN, Setting(chunked=not stock, fused_optimiser=not stock), P40).peak
    assert run(["plan", "--model", str(folder), *more, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["peak_bytes"] < before
    assert data["measured"] is measured
    assert run(["plan", "--model", str(folder), *more]) == 0
    assert ("in this combination are an estimate, not measured" in capsys.readouterr().out) is not measured


def test_an_architecture_not_known_is_not_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    assert run(["plan", "--model", str(tmp_path)]) == 3
    assert "nothing is known" in capsys.readouterr().err
