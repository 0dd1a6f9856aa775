"""The parts of `envbuilder train`: choice by the plan, data, reward, checkpoints, the folder, starting again."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from envbuilder.errors import InputError
from envbuilder.smoke.verl_overrides import quoted
from envbuilder.stack.gpu import load_gpu
from envbuilder.train import checkpoints, choosing
from envbuilder.train.checkpoints import TRACKER, last_whole, put_in_order, tracked
from envbuilder.train.choosing import choose, what_would_fit
from envbuilder.train.datacheck import check_data, find_data
from envbuilder.train.decoder_config import DecoderConfig
from envbuilder.train.lengths import PromptTokenizer
from envbuilder.train.outfolder import OutFolder
from envbuilder.train.resuming import asked, finished
from envbuilder.train.rewards import check_reward_file, without_reward
from envbuilder.train.settings import Wanted
from tests.unit.train.training import rows, wanted, write_data, write_model

QWEN = DecoderConfig(896, 4864, 24, 14, 2, 64, 151936, tied=True, qkv_bias=True)
P40 = load_gpu("p40")
RUN = Wanted("p40-debian", Path("m"), Path("d"), Path("o"))


def test_the_largest_micro_batch_that_fits_comes_before_checkpointing():
    choice = choose(QWEN, replace(RUN, batch=8), P40, "eager")
    assert (choice.setting.batch, choice.setting.checkpointing, choice.fits) == (2, False, True)
    assert [told for told, _ in choice.tried] == ["micro batch 8, no checkpointing", "micro batch 4, no checkpointing"]
    long = choose(QWEN, replace(RUN, prompt=1024, response=1024, batch=8), P40, "eager")
    assert (long.setting.batch, long.setting.checkpointing, long.fits) == (8, True, True)


def test_what_just_fits_is_taken_when_the_user_names_it():
    """Four sequences of 448 tokens: 21.6 of 22.5 GiB, nearer than the plan is exact."""
    wanted = replace(RUN, prompt=224, response=224, batch=8, micro_batch=4, checkpointing=False)
    assert choose(QWEN, wanted, P40, "eager").fits


def test_what_the_user_names_is_not_varied_and_what_would_fit_is_told():
    fixed = replace(RUN, batch=8, micro_batch=8, checkpointing=False)
    choice = choose(QWEN, fixed, P40, "eager")
    assert not choice.fits
    assert choice.setting.batch == 8
    assert what_would_fit(QWEN, fixed, P40, "eager")[0] == "leave --micro-batch and --checkpointing to the plan"
    huge = replace(RUN, prompt=4096, response=8192)
    assert what_would_fit(QWEN, huge, P40, "eager") == [
        "--prompt 2048 --response 4096", "--prompt 1024 --response 2048", "--prompt 512 --response 1024",
    ]  # fmt: skip
    assert what_would_fit(QWEN, replace(RUN, prompt=2048, response=2048), P40, "eager")[0].startswith("--offload")


def test_the_rollout_decodes_as_many_at_once_as_the_decoder_takes():
    source = Path(choosing.__file__).with_name("rollout") / "decoder.py"
    assert f"\nMAX_BATCH = {choosing.DECODED_AT_ONCE}\n" in source.read_text()


def test_data_is_counted_and_measured(tmp_path):
    data = find_data(write_data(tmp_path / "d", [*rows(6, words=2), *rows(2, words=9)]))
    check_data(data, PromptTokenizer(write_model(tmp_path / "m")), limit=4)
    assert (data.rows, data.usable, data.sources) == (8, 6, ["openai/gsm8k"])
    assert data.validation == data.train
    write_data(tmp_path / "d", rows(1), "test")
    assert find_data(tmp_path / "d").validation.name == "test.parquet"


BAD_ROWS: dict[str, tuple[Any, str]] = {
    "no prompt": ([{"data_source": "a", "question": "1"}], "no column prompt, reward_model"),
    "text": ([{**rows(1)[0], "prompt": "one"}], "not a list of chat messages"),
    "no truth": ([{**rows(1)[0], "reward_model": {"style": "rule"}}], "holds no ground_truth"),
    "empty": ([*rows(1), {**rows(1)[0], "prompt": []}], "row 2 has no prompt"),
    "null": ([*rows(1), {**rows(1)[0], "reward_model": None}], "row 2 has no reward_model"),
    "null truth": (
        [*rows(1), {**rows(1)[0], "reward_model": {"style": "a"}}],
        "row 2 has no reward_model.ground_truth",
    ),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_data_that_verl_cannot_read_is_named(name, tmp_path):
    data, says = BAD_ROWS[name]
    with pytest.raises(InputError, match=says):
        check_data(find_data(write_data(tmp_path, data)), None, 10)


def test_a_file_that_is_no_parquet_and_one_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"no train\.parquet"):
        find_data(tmp_path)
    (tmp_path / "train.parquet").write_text("{}")
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        check_data(find_data(tmp_path), None, 10)


def test_which_data_sources_verl_scores():
    assert without_reward(["openai/gsm8k", "aime2024", "my/task", "gsm8k"]) == ["gsm8k", "my/task"]


GOOD = "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("def f(:\n", "f", "is not Python"),
        (GOOD, "other", "defines no function other"),
        (
            "def compute_score(solution_str):\n    return 1\n",
            "compute_score",
            "does not take data_source, ground_truth",
        ),
    ],
)
def test_a_reward_file_that_verl_could_not_call(tmp_path, text, name, says):
    path = tmp_path / "reward.py"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        check_reward_file(path, name)


def test_a_reward_file_is_read_and_never_run(tmp_path):
    path = tmp_path / "reward.py"
    path.write_text(GOOD + "raise SystemExit('run')\n")
    check_reward_file(path, "compute_score")
    path.write_text("def f(**kwargs):\n    return 1.0\n")
    check_reward_file(path, "f")
    with pytest.raises(InputError, match="cannot be read"):
        check_reward_file(tmp_path, "f")


def write_checkpoint(folder: Path, step: int, cut: str = "") -> None:
    for part in ("actor", "critic"):
        for kind in ("model", "optim", "extra_state"):
            write_torch_file(folder / f"global_step_{step}" / part / f"{kind}_world_size_1_rank_0.pt")
    write_torch_file(folder / f"global_step_{step}" / "data.pt")
    (folder / TRACKER).write_text(str(step))
    if cut:
        path = folder / f"global_step_{step}" / cut
        path.write_bytes(path.read_bytes()[:-30])


def write_torch_file(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", "weights")


def test_the_last_two_checkpoints_are_not_both_needed(tmp_path):
    for step in (10, 20, 30):
        write_checkpoint(tmp_path, step)
    assert put_in_order(tmp_path) == 30
    assert sorted(p.name for p in tmp_path.iterdir()) == ["global_step_30", TRACKER]


@pytest.mark.parametrize("cut", ["data.pt", "critic/optim_world_size_1_rank_0.pt"])
@pytest.mark.parametrize("tracker", ["10", "", "20", None])
def test_a_save_that_was_killed_is_gone_and_the_one_before_it_counts(tmp_path, cut, tracker):
    write_checkpoint(tmp_path, 10)
    write_checkpoint(tmp_path, 20, cut)
    if tracker is None:
        (tmp_path / TRACKER).unlink()
    else:
        (tmp_path / TRACKER).write_text(tracker)
    assert last_whole(tmp_path) == 10
    assert put_in_order(tmp_path) == 10
    assert tracked(tmp_path) == 10
    assert not (tmp_path / "global_step_20").exists()


def test_a_first_save_that_was_killed_leaves_nothing_to_resume(tmp_path):
    write_checkpoint(tmp_path, 5)
    (tmp_path / "global_step_5" / "critic" / "model_world_size_1_rank_0.pt").unlink()
    assert put_in_order(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    assert put_in_order(tmp_path / "nowhere") == 0


def test_a_whole_checkpoint_that_verl_had_not_noted_yet_counts(tmp_path):
    write_checkpoint(tmp_path, 10)
    write_checkpoint(tmp_path, 20)
    (tmp_path / TRACKER).write_text("")
    assert put_in_order(tmp_path) == 20
    assert (tmp_path / TRACKER).read_text() == "20"


def test_the_size_of_a_checkpoint_is_the_one_that_was_measured():
    """12 GB for Qwen2.5-0.5B as actor and critic (docs/train.md)."""
    assert checkpoints.checkpoint_bytes(QWEN.causal_lm, QWEN.value_model) == pytest.approx(12e9, rel=0.02)


def test_a_folder_that_is_not_a_runs(tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mother.txt").write_text("dear")
    with pytest.raises(InputError, match="not empty and holds no run"):
        OutFolder(tmp_path / "letters").check()
    with pytest.raises(InputError, match="is not a folder"):
        OutFolder(tmp_path / "letters" / "mother.txt" / "out").check()
    OutFolder(tmp_path / "new" / "out").check()
    (tmp_path / "letters" / "run.json").write_text("[]")
    with pytest.raises(InputError, match="record of the run cannot be read"):
        OutFolder(tmp_path / "letters").check()


def test_two_runs_in_one_folder_are_refused(tmp_path):
    with OutFolder(tmp_path).held(), pytest.raises(InputError, match="another run is writing here"):  # noqa: SIM117
        with OutFolder(tmp_path).held():
            pass


def test_metrics_after_the_checkpoint_are_forgotten(tmp_path):
    out = OutFolder(tmp_path)
    out.metrics.write_text("".join(json.dumps({"step": n}) + "\n" for n in range(1, 6)) + '{"step": 6, "sco')
    out.forget_after(3)
    assert [json.loads(line)["step"] for line in out.metrics.read_text().splitlines()] == [1, 2, 3]


def recorded(run: Wanted, steps: int) -> OutFolder:
    out = OutFolder(run.out)
    out.prepare({"asked": asked(run), "steps": steps}, "#!/bin/sh\n")
    return out


def test_starting_again(tmp_path):
    run = wanted(tmp_path, steps=20)
    out = OutFolder(run.out)
    assert finished(run, out, resume=False) is None
    with pytest.raises(InputError, match="no run to resume"):
        finished(run, out, resume=True)
    recorded(run, 20)
    write_checkpoint(out.checkpoints, 10)
    assert finished(run, out, resume=False) is None
    write_checkpoint(out.checkpoints, 20)
    assert finished(run, out, resume=False) == 20
    assert finished(replace(run, steps=None), out, resume=False) == 20
    assert finished(replace(run, steps=30, save_every=7, gpu=1), out, resume=False) is None


def test_other_settings_need_the_users_word(tmp_path):
    run = wanted(tmp_path, steps=20)
    out = recorded(run, 20)
    changed = replace(run, batch=4, given=("critic.optim.lr=1e-5",))
    with pytest.raises(InputError, match=r"batch: 1 there, 4 now, given: \[\] there"):
        finished(changed, out, resume=False)
    assert finished(changed, out, resume=True) is None


def test_plain_texts_stay_plain_and_words_of_hydra_are_quoted():
    assert quoted("/data/train.parquet") == "/data/train.parquet"
    assert quoted("compute_score") == "compute_score"
    assert [quoted(text) for text in ("null", "True", "12", "a b", "it's")] == [
        "'null'", "'True'", "'12'", "'a b'", "'it\\'s'",
    ]  # fmt: skip
