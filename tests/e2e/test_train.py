"""`envbuilder train` in the real image: a toy Qwen2 on the CPU trains, is interrupted, goes on, and is at its end."""

import json
import os
import signal
import subprocess
import sys

import pytest

from envbuilder.image.buildah import Buildah
from envbuilder.image.building import build_stack
from envbuilder.image.engine import RunRequest
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack

pytestmark = pytest.mark.e2e
TOY = """
from pathlib import Path
from envbuilder.smoke.shapes import TOY, read_questions, write_model, write_prompts
pairs = read_questions(None)
write_model(Path("/out/model"), TOY, [question for question, _ in pairs])
Path("/out/data").mkdir()
write_prompts(Path("/out/data/train.parquet"), pairs)
"""


def write_toy(folder, image):
    """A toy model and a few questions, written by the image's own transformers."""
    folder.mkdir()
    run = Buildah().run(RunRequest(image, ("python3", "-c", TOY), writable={folder: "/out"}))
    assert (list(run), run.wait()) == ([], 0), run.errors()


def containers():
    listed = subprocess.run(["buildah", "containers", "--all", "--quiet"], capture_output=True, text=True, check=True)
    return set(listed.stdout.split())


def train(folder, image, *more):
    """The command as a user starts it."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "envbuilder", "train", "p40-debian", "--image", image, "--engine", "buildah"),
            *("--model", str(folder / "toy/model"), "--data", str(folder / "toy/data"), "--out", str(folder / "run")),
            *("--device", "cpu", "--prompt", "96", "--response", "8", "--batch", "4", "--save-every", "1", "--json"),
            *more,
        ],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def train_is_interrupted_and_goes_on(folder, image):
    """The whole story; the events of the last start."""
    write_toy(folder / "toy", image)
    before = containers()
    first = train(folder, image, "--steps", "3")
    for line in first.stdout:
        if json.loads(line) == {"event": "checkpoint", "step": 1}:
            os.kill(first.pid, signal.SIGINT)
            break
    said = first.communicate()[1]
    assert first.returncode == 130, said
    assert "the container is gone, the checkpoint of step" in said
    assert containers() <= before
    owner = (folder / "run/checkpoints").stat().st_uid
    assert {path.stat().st_uid for path in (folder / "run/checkpoints").rglob("*")} == {owner} != {0}

    second = train(folder, image, "--steps", "3")
    out, said = second.communicate()
    events = [json.loads(line) for line in out.splitlines()]
    assert second.returncode == 0, out + said
    begun = next(event["from"] for event in events if event["event"] == "begin")
    assert begun >= 1
    steps = [event["step"] for event in events if event["event"] == "step"]
    assert steps == list(range(begun + 1, 4))
    assert all(event["memory_bytes"] > 0 for event in events if event["event"] == "step")
    kept = [json.loads(line)["step"] for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    assert kept == [1, 2, 3]

    third = train(folder, image, "--steps", "3")
    out, said = third.communicate()
    assert (third.returncode, json.loads(out)["finished"]) == (0, True), said
    return events


def test_train_in_the_real_image(tmp_path):
    stack, gpu = load_stack("p40-debian")
    built = build_stack(stack, gpu, load_lock(stack), Buildah(), Silent())
    train_is_interrupted_and_goes_on(tmp_path, built.image.reference)
