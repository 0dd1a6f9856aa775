"""The launch script: byte-stable, quoted as data, clean for lint; and what the user's own overrides may do."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.diagnose.lint.engine import lint_text
from envbuilder.errors import InputError
from envbuilder.smoke.verl_overrides import Override, quoted
from envbuilder.train.script import render
from envbuilder.train.settings import Paths, Sizes, Wanted, overrides

WANTED = Wanted("p40-debian", Path("model"), Path("data"), Path("out"), prompt=256, response=128, batch=8)
SIZES = Sizes(micro_batch=4, checkpointing=True, steps=934, epochs=1)


def script(wanted: Wanted = WANTED) -> str:
    return render(overrides(wanted, SIZES, Paths(), "float32"), "p40-debian", "Tesla P40", wanted.device, Paths())


def variant(**more: object) -> Wanted:
    return Wanted(**{**vars(WANTED), **more})  # type: ignore[arg-type]


VARIANTS = {
    "cuda": WANTED,
    "cpu": variant(gpu=None),
    "all": variant(
        offload=("optimiser", "reference"), reward=Path("mine.py"), given=("actor_rollout_ref.actor.optim.lr=5e-7",)
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_the_script_is_the_golden_one_and_lint_finds_nothing(name, snapshot):
    text = script(VARIANTS[name])
    assert text == snapshot
    assert lint_text("train.sh", text).findings == ()


def run(text: str, folder: Path) -> tuple[list[str], dict[str, str]]:
    """Run the script with a python3 that writes down what it is given; arguments and environment."""
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "mkdir").write_text("#!/bin/sh\n")
    (tools / "python3").write_text('#!/bin/sh\nprintf "%s\\0" "$@" > "$SEEN"; env -0 > "$SEEN.env"\n')
    for tool in tools.iterdir():
        tool.chmod(0o755)
    seen = folder / "seen"
    path = f"{tools}:{os.environ['PATH']}"
    subprocess.run(["/bin/sh", "-c", text], env={"PATH": path, "SEEN": str(seen), "HOME": "/nowhere"}, check=True)
    environment = dict(
        line.split("=", 1) for line in (folder / "seen.env").read_bytes().decode().split("\0") if "=" in line
    )
    return seen.read_bytes().decode().split("\0")[:-1], environment


def test_the_launcher_gets_every_override_and_a_home(tmp_path):
    arguments, environment = run(script(), tmp_path)
    assert arguments == ["-m", "envbuilder.smoke.launch", *map(str, overrides(WANTED, SIZES, Paths(), "float32"))]
    assert environment["HOME"] == "/tmp"
    assert environment["ENVBUILDER_DEVICE"] == "cuda"
    assert environment["USER"] == "trainer"


TEXT = st.text(st.characters(blacklist_characters="\0", blacklist_categories=("Cs",)), max_size=30)


@settings(max_examples=20)
@given(value=TEXT, path=TEXT)
def test_no_value_gets_out_of_its_quotes(tmp_path_factory, value, path):
    folder = tmp_path_factory.mktemp("quote")
    paths = Paths(samples=f"/out/{path}")
    rows = [Override("data.train_files", quoted(value)), Override("data.val_files", value)]
    arguments, environment = run(render(rows, "p40-debian", "Tesla P40", "cuda", paths), folder)
    assert arguments[2:] == [f"data.train_files={quoted(value)}", f"data.val_files={value}"]
    assert environment["ENVBUILDER_SAMPLES"] == f"/out/{path}"


def test_an_override_of_the_users_takes_the_place_of_ours():
    rows = [str(row) for row in overrides(VARIANTS["all"], SIZES, Paths(), "float32")]
    assert [row for row in rows if "actor.optim.lr=" in row] == ["actor_rollout_ref.actor.optim.lr=5e-7"]


@pytest.mark.parametrize(
    ("given_", "says"),
    [
        ("lr", "is no override"),
        ("=5", "is no override"),
        ("actor_rollout_ref.rollout.name=vllm", "the card needs the value it has"),
        ("+actor_rollout_ref.rollout.dtype=float16", "the card needs"),
        ("data.max_prompt_length=5", "an option gives it"),
    ],
)
def test_an_override_that_cannot_be_taken_is_refused(given_, says):
    with pytest.raises(InputError, match=says):
        overrides(variant(given=(given_,)), SIZES, Paths(), "float32")
