"""One run of the real ``verl.trainer.main_ppo`` with the HF rollout, in float32, watched from outside."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.smoke.ray_worker import DEVICE_ENVIRONMENT, SAMPLES_ENVIRONMENT
from envbuilder.smoke.shapes import Shape, read_questions, write_model, write_prompts
from envbuilder.smoke.trainer_log import TrainerStep, add_memory, read_step, reserved_peak
from envbuilder.smoke.verl_overrides import RunSizes, run_overrides, verl_overrides

_NOTE = "rollout: "


@dataclass(frozen=True)
class Setup:
    """What to train: a model of ``shape`` with random weights on ``questions`` (GSM8K as JSON lines) or ours.

    ``batch`` is in sequences a step, ``micro`` in sequences of one forward; 0 means the whole batch.
    ``model`` is a folder with such a model; without it one is written for the run. ``limit_s``: seconds after
    the first step when the run is ended with the steps it has; 0 lets it go on.
    """

    shape: Shape
    device: str
    steps: int
    prompt: int = 96
    response: int = 8
    batch: int = 2
    questions: Path | None = None
    attention: str = "eager"
    checkpointing: bool = False
    guarded: bool = True
    model: Path | None = None
    limit_s: float = 0.0
    micro: int = 0


@dataclass
class Training:
    """What a run gave. ``code`` is the launcher's exit code, 0 when ``limit_s`` ended it; ``tail`` its last lines;
    ``notes`` what the rollout said of itself."""

    steps: list[TrainerStep] = field(default_factory=list)
    code: int = 0
    tail: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    startup_s: float = 0.0
    reserved_peak_bytes: int = 0
    findings: tuple[Any, ...] = ()
    guarded: list[dict[str, Any]] = field(default_factory=list)


def train(setup: Setup, told: Callable[[TrainerStep], None]) -> Training:
    """Write the model and the data, run the trainer, and read what it printed. ``told`` hears of each step."""
    from envbuilder.smoke.guard_worker import collect

    with tempfile.TemporaryDirectory(prefix="envbuilder-train-") as name:
        folder = Path(name)
        pairs = read_questions(setup.questions)
        if setup.model is None:
            write_model(folder / "model", setup.shape, [question for question, _ in pairs], setup.attention)
        write_prompts(folder / "train.parquet", pairs)
        (folder / "samples").mkdir()
        (folder / "guard").mkdir()
        result = _run(setup, folder, told)
        add_memory(result.steps, folder / "samples")
        result.reserved_peak_bytes = reserved_peak(folder / "samples")
        result.findings, result.guarded = collect(folder / "guard")
    return result


def _run(setup: Setup, folder: Path, told: Callable[[TrainerStep], None]) -> Training:
    environment = {
        **os.environ,
        DEVICE_ENVIRONMENT: setup.device,
        SAMPLES_ENVIRONMENT: str(folder / "samples"),
        **({"ENVBUILDER_GUARD": str(folder / "guard")} if setup.guarded else {}),
        # Without a GPU, Ray would still hand out index 0; a GPU that is there must stay unseen.
        **({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"} if setup.device == "cpu" else {}),
        "RAY_DEDUP_LOGS": "0",
        "PYTHONUNBUFFERED": "1",
    }
    begin = time.time()
    result = Training()
    tail: collections.deque[str] = collections.deque(maxlen=40)
    process = subprocess.Popen(
        [sys.executable, "-m", "envbuilder.smoke.launch", *overrides(setup, folder)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment, cwd=folder,
    )  # fmt: skip
    assert process.stdout is not None
    ended = threading.Event()
    late = threading.Timer(setup.limit_s, _end, (process, ended))
    try:
        for line in process.stdout:
            tail.append(line.rstrip())
            if _NOTE in line:
                result.notes.append(line[line.index(_NOTE) :].rstrip())
            step = read_step(line, time.time())
            if step is not None:
                result.steps.append(step)
                add_memory([step], folder / "samples", recent=True)
                told(step)
                if setup.limit_s and len(result.steps) == 1:
                    late.start()
        code = process.wait()
        result.code = 0 if ended.is_set() else code
    finally:
        late.cancel()
        process.terminate()
    if result.steps:
        first = result.steps[0]
        result.startup_s = first.ended - first.metrics.get("timing_s/step", 0.0) - begin
    result.tail = list(tail)
    return result


def _end(process: subprocess.Popen[str], ended: threading.Event) -> None:
    """Ask the launcher to end, which shuts Ray down; make it end when it does not."""
    ended.set()
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()


def overrides(setup: Setup, folder: Path) -> Sequence[str]:
    """hydra's overrides for verl 0.5.0: what the card needs, and this run's sizes and paths."""
    model = str(setup.model or folder / "model")
    data, checkpoints = f"{folder}/train.parquet", f"{folder}/checkpoints"
    sizes = RunSizes(
        setup.device, model, data, data, checkpoints, setup.steps, setup.prompt, setup.response, setup.batch,
        micro_batch=setup.micro or setup.batch, checkpointing=setup.checkpointing,
    )  # fmt: skip
    return [*verl_overrides("float32"), *map(str, run_overrides(sizes))]
