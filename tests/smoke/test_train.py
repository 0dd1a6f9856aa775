"""`envbuilder train` against the pinned verl: its overrides compose, and each of them does something."""

from __future__ import annotations

import copy
import os
import random
import signal
import string
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import verl.trainer
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from envbuilder.smoke.shapes import TOY, read_questions, write_model, write_prompts
from envbuilder.smoke.verl_overrides import Override, quoted, table
from envbuilder.train.checkpoints import last_whole, put_in_order
from envbuilder.train.script import render
from envbuilder.train.settings import Paths, Sizes, Wanted, overrides
from tests.smoke.manifests import write_manifest

WANTED = Wanted("p40-debian", Path("model"), Path("data"), Path("out"), prompt=256, response=128, batch=8)
SIZES = Sizes(micro_batch=4, checkpointing=False, steps=934, epochs=2)
RUNS = [
    WANTED,
    replace(WANTED, gpu=None),
    replace(WANTED, offload=("optimiser", "reference"), reward=Path("mine.py"), reward_name="mine"),
]


@pytest.fixture
def configuration() -> Iterator[None]:
    """verl's own configuration, in which a key that does not exist is an error."""
    with initialize_config_dir(str(Path(verl.trainer.__file__).with_name("config")), version_base=None):
        yield


def with_rows(defaults: Any, rows: Sequence[Override]) -> Any:
    config = copy.deepcopy(defaults)
    for row in OverridesParser.create().parse_overrides([str(row) for row in rows]):
        OmegaConf.update(config, row.key_or_group, row.value(), force_add=row.is_add())
    return OmegaConf.to_container(config, resolve=True)


def rows_of(wanted: Wanted) -> list[Override]:
    return overrides(wanted, SIZES, Paths(), "float32")


@pytest.mark.usefixtures("configuration")
@pytest.mark.parametrize("wanted", RUNS, ids=["cuda", "cpu", "offload and reward"])
def test_every_override_exists_and_changes_something_or_says_that_it_is_a_default(wanted: Wanted) -> None:
    """Composed once by hydra, strictly; then without each row in turn, by the same parser on the same tree."""
    rows = rows_of(wanted)
    whole = OmegaConf.to_container(compose("ppo_trainer", overrides=[str(row) for row in rows]), resolve=True)
    defaults = compose("ppo_trainer")
    assert with_rows(defaults, rows) == whole
    for row in rows:
        idle = with_rows(defaults, [other for other in rows if other is not row]) == whole
        if row.default is not None:
            assert idle == row.default, row


def test_every_row_of_the_list_is_used_by_one_of_the_runs() -> None:
    used = {row.key for wanted in RUNS for row in rows_of(wanted)}
    assert {row["key"] for part in ("overrides", "run") for row in table()[part] if row.get("when") != "cut"} <= used


@pytest.mark.usefixtures("configuration")
def test_a_text_arrives_as_it_was_whatever_is_in_it() -> None:
    chosen = random.Random(6)
    texts = [
        "null",
        "True",
        "12",
        "nan",
        "",
        "${oc.env:HOME}",
        "\\${a}",
        "it's",
        "\\",
        "\\'",
        "[1,2]",
        "{a: b}",
        "a=b,c",
    ]
    alphabet = string.ascii_letters + string.digits + "\\'\"${}[]()=,:/ ~+.%@\té"
    texts += ["".join(chosen.choices(alphabet, k=chosen.randrange(1, 12))) for _ in range(200)]
    config = compose("ppo_trainer", overrides=[f"+data.text{n}={quoted(text)}" for n, text in enumerate(texts)])
    assert [config.data[f"text{n}"] for n in range(len(texts))] == texts


def launch(folder: Path, steps: int) -> subprocess.Popen[str]:
    """The rendered script over a toy model on the CPU, in a session of its own, a checkpoint after each step."""
    paths = Paths(
        str(folder / "model"), str(folder / "train.parquet"), str(folder / "train.parquet"),
        checkpoints=str(folder / "checkpoints"), samples=str(folder / "samples"),
    )  # fmt: skip
    wanted = replace(WANTED, gpu=None, prompt=96, response=8, batch=4, save_every=1)
    rows = overrides(wanted, Sizes(micro_batch=2, checkpointing=True, steps=steps, epochs=1), paths, "float32")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "ENVBUILDER_STACK": str(write_manifest(folder / "stack.json")),
    }
    return subprocess.Popen(
        ["/bin/sh", "-c", render(rows, "p40-debian", "Tesla P40", "cpu", paths)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True,
    )  # fmt: skip


@pytest.mark.e2e
def test_the_script_trains_is_killed_while_it_saves_and_goes_on(tmp_path: Path) -> None:
    pairs = read_questions(None)
    write_model(tmp_path / "model", TOY, [question for question, _ in pairs])
    write_prompts(tmp_path / "train.parquet", pairs)
    first = launch(tmp_path, 3)
    assert first.stdout is not None
    seen = []
    for line in first.stdout:
        seen.append(line)
        if "local_global_step_folder" in line and "global_step_2" in line:
            os.killpg(first.pid, signal.SIGKILL)  # verl begins to write the second checkpoint
            break
    first.wait()
    assert any("step:1 - " in line for line in seen), "".join(seen[-40:])
    whole = last_whole(tmp_path / "checkpoints")
    assert whole in (1, 2)
    (tmp_path / "checkpoints" / "latest_checkpointed_iteration.txt").write_text("")  # the worst that a kill can do
    assert put_in_order(tmp_path / "checkpoints") == whole

    second = launch(tmp_path, 3)
    out, _ = second.communicate()
    assert second.returncode == 0, out[-4000:]
    assert f"Setting global step to {whole}" in out
    assert [n for n in (1, 2, 3) if f" step:{n} - " in out] == list(range(whole + 1, 4))
    assert last_whole(tmp_path / "checkpoints") == 3
