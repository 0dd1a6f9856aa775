"""A run through a stand-in engine: what is shown, kept and said, with real output of the trainer as its lines."""

from __future__ import annotations

import io
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from envbuilder import cli
from envbuilder.cli.training_view import LiveView, duration
from envbuilder.image import choose
from envbuilder.image.engine import ImageInfo, RunRequest
from envbuilder.smoke import nvml
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.train import kernel_log
from envbuilder.train.watching import Watch
from tests.unit.train.test_train_parts import write_checkpoint
from tests.unit.train.training import QWEN, rows, write_data, write_model

LOGS = Path(__file__).parents[2] / "data" / "training"
TWO_STEPS = (LOGS / "two-steps-on-a-cpu.log").read_text().splitlines()
STEP = next(line for line in TWO_STEPS if "step:1 - " in line)
OUT_OF_MEMORY = [
    "(WorkerDict pid=77) Traceback (most recent call last):",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 22.38 GiB "
    "of which 1.10 GiB is free. Including non-PyTorch memory, this process has 21.27 GiB memory in use. Of the "
    "allocated memory 20.91 GiB is allocated by PyTorch, and 61.20 MiB is reserved by PyTorch but unallocated.",
]  # fmt: skip
BF16 = [
    "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx( handle, opa, opb, m, n, k, "
    "&falpha, a, CUDA_R_16BF, lda, b, CUDA_R_16BF, ldb, &fbeta, c, CUDA_R_16BF, ldc, compute_type, "
    "CUBLAS_GEMM_DEFAULT_TENSOR_OP)`"
]  # fmt: skip
KILLED = [
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The "
    "process is killed by SIGKILL by OOM killer due to high memory usage.",
]  # fmt: skip
P40 = Card(0, "Tesla P40", "GPU-1", "03:00.0", (6, 1), memory_mib=24576.0, memory_used_mib=4.0)
HOST = HostFacts(driver="550.90.07", cards=(P40,))


class StandInRun:
    """A container that prints given lines; "interrupt" is Ctrl-C; a step's checkpoint is written before its line."""

    def __init__(self, lines: list[str], code: int, checkpoints: Path) -> None:
        self.lines, self.code, self.checkpoints, self.stopped = lines, code, checkpoints, False

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            if line == "interrupt":
                raise KeyboardInterrupt
            if " step:" in line:
                write_checkpoint(self.checkpoints, int(line.split(" step:")[1].split(" ")[0]))
            yield line

    def wait(self) -> int:
        return self.code

    def errors(self) -> str:
        return ""

    def stop(self) -> None:
        self.stopped = True


class StandInEngine:
    """An engine that has every image and prints."""

    name = "stand-in"

    def __init__(self) -> None:
        self.lines, self.code = TWO_STEPS, 0
        self.requests: list[RunRequest] = []
        self.runs: list[StandInRun] = []

    def version(self) -> str:
        return "stand-in 1"

    def image(self, reference: str) -> ImageInfo | None:
        return None if reference == "none" else ImageInfo(reference, "sha256:id", "sha256:abc", (), {})

    def run(self, request: RunRequest) -> StandInRun:
        self.requests.append(request)
        self.runs.append(StandInRun(self.lines, self.code, next(iter(request.writable))))
        return self.runs[-1]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandInEngine:
    made = StandInEngine()
    monkeypatch.setattr(choose, "choose_engine", lambda name: made)
    monkeypatch.setattr(nvml, "collect", lambda: HOST)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**12))
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_model(tmp_path / "model")
    write_data(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def train(*more: str) -> int:
    given = [
        "train",
        "p40-debian",
        "--model",
        "model",
        "--data",
        "data",
        "--out",
        "out",
        "--steps",
        "2",
        "--batch",
        "4",
    ]
    return cli.run([*given, *more])


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line, parse_constant=pytest.fail) for line in text.splitlines()]


def test_a_run_to_its_end(folder, engine, capsys):
    assert train("--save-every", "1") == 0
    said = capsys.readouterr().out
    assert "2 steps in all; everything the trainer prints goes to out/logs/run-001.log" in said
    assert "step 1/2  score 0.000" in said
    assert "checkpoint of step 2" in said
    assert "yes: 2 steps trained; score 0.000 at the begin" in said
    assert (folder / "out/logs/run-001.log").read_text().splitlines() == TWO_STEPS
    kept = [json.loads(line) for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    assert [step["step"] for step in kept] == [1, 2]
    assert kept[0]["metrics"]["critic/vf_loss"] == kept[0]["value_loss"]
    assert kept[0]["seconds"]["rollout"] > 0
    assert engine.runs[0].stopped
    request = engine.requests[0]
    assert request.gpu == "GPU-1"
    assert request.mounts[(folder / "model/config.json")] == "/model/config.json"
    assert request.writable == {folder / "out/checkpoints": "/out/checkpoints", folder / "out/samples": "/out/samples"}
    assert not request.network


def test_a_finished_run_costs_nothing(folder, engine, capsys):
    assert train() == 0
    assert train() == 0
    assert "all 2 steps are done, the checkpoint is out/checkpoints/global_step_2" in capsys.readouterr().out
    assert len(engine.runs) == 1


def test_json_is_an_event_a_line(folder, engine, capsys):
    assert train("--json") == 0
    kinds = [event["event"] for event in events(capsys.readouterr().out)]
    assert kinds == ["ready", "begin", "step", "checkpoint", "step", "checkpoint", "end"]


def test_ctrl_c_keeps_the_checkpoint_and_the_same_command_goes_on(folder, engine, capsys):
    first = next(number for number, line in enumerate(TWO_STEPS) if " step:1 - " in line)
    engine.lines = [*TWO_STEPS[: first + 1], "interrupt"]
    assert train() == 130
    assert "the container is gone, the checkpoint of step 1 is kept" in capsys.readouterr().err
    assert engine.runs[0].stopped
    engine.lines = TWO_STEPS[first + 1 :]
    assert train() == 0
    said = capsys.readouterr().out
    assert "going on from the checkpoint of step 1, 2 steps in all" in said
    assert "1 steps trained" in said
    kept = [json.loads(line)["step"] for line in (folder / "out/metrics.jsonl").read_text().splitlines()]
    assert kept == [1, 2]
    assert len(list((folder / "out/logs").iterdir())) == 2


FAILURES = {
    "cuda-out-of-memory": OUT_OF_MEMORY,
    "cublas-type-not-supported": BF16,
    "ray-worker-died": KILLED,
}


@pytest.mark.parametrize("rule", FAILURES)
def test_a_failure_is_diagnosed_with_its_evidence(rule, folder, engine, capsys):
    engine.lines, engine.code = [*TWO_STEPS[:-20], *FAILURES[rule]], 1
    assert train() == 1
    said = capsys.readouterr().out
    assert f"({rule}" in said
    assert "cause:" in said
    assert "cure:" in said
    assert "no: the trainer ended with exit code 1 after step" in said
    assert "Everything it printed is in out/logs/run-001.log" in said


def test_a_worker_that_the_kernel_killed_is_known_by_the_kernels_own_lines(folder, engine, capsys, monkeypatch):
    """A stand-in dmesg: an old line of another death, and one of this run."""
    now = kernel_log.uptime()
    old, new = (
        f"[{now - 5000:12.6f}] Out of memory: Killed process 1 (old)",
        (
            f"[{now + 5000:12.6f}] Out of memory: Killed process 4711 (ray::WorkerDict) total-vm:29000000kB, "
            "anon-rss:24000000kB, file-rss:0kB, shmem-rss:0kB"
        ),
    )
    dmesg = folder / "bin" / "dmesg"
    dmesg.parent.mkdir()
    dmesg.write_text(f"#!/bin/sh\ncat <<'END'\n{old}\n{new}\nEND\n")
    dmesg.chmod(0o755)
    monkeypatch.setenv("PATH", str(dmesg.parent), prepend=":")
    engine.lines, engine.code = [*TWO_STEPS[:-20], *KILLED], 1
    assert train() == 1
    said = capsys.readouterr().out
    assert "(kernel-oom-killer)" in said
    assert "4711" in said
    assert "(old)" not in said


def test_a_failure_that_nobody_knows_shows_its_last_lines(folder, engine, capsys):
    engine.lines, engine.code = ["begin", "the loom is broken", ""], 7
    assert train() == 1
    said = capsys.readouterr().out
    assert "  | the loom is broken" in said
    assert "exit code 7 after step 0 of 2. There is no checkpoint. No rule knows why" in said


def test_a_loss_that_is_no_number_stops_the_run(folder, engine, capsys):
    loss = next(word for word in STEP.split(" - ") if word.startswith("critic/vf_loss:"))
    engine.lines = [STEP.replace(loss, "critic/vf_loss:nan"), "never read"]
    assert train("--json") == 1
    seen = events(capsys.readouterr().out)
    assert seen[-1]["findings"][0]["rule"] == "train-not-finite"
    assert engine.runs[0].stopped
    assert "never read" not in (folder / "out/logs/run-001.log").read_text()


def test_all_problems_are_told_at_once(folder, engine, capsys, monkeypatch):
    monkeypatch.setattr(nvml, "collect", lambda: HostFacts(no_driver=True))
    (folder / "model/tokenizer.json").unlink()
    (folder / "mine.py").write_text("def f(): pass\n")
    (folder / "out").mkdir()
    (folder / "out/letter").write_text("dear")
    write_data(folder / "data", [{"question": "1"}])
    assert train("--image", "none", "--reward", "mine.py:f", "--set", "trainer.logger_name=x", "--json") == 1
    (event,) = events(capsys.readouterr().out)
    failed = {check["id"]: check["message"] for check in event["checks"] if check["status"] == "failed"}
    assert set(failed) == {"model", "data", "out", "image", "card"}
    assert engine.runs == []


def test_what_verl_does_not_read_is_refused(folder, engine, capsys):
    assert train("--set", "actor_rollout_ref.actor.fsdp_config.cpu_offload=True", "--json") == 1
    (event,) = events(capsys.readouterr().out)
    (failed,) = [check for check in event["checks"] if check["status"] == "failed"]
    assert failed["id"] == "overrides"
    assert "cpu_offload" in failed["message"]


def test_a_run_that_does_not_fit_is_refused_with_what_would(folder, engine, capsys):
    write_model(folder / "model", QWEN)
    assert train("--prompt", "4096", "--response", "8192", "--json") == 1
    (event,) = events(capsys.readouterr().out)
    (failed,) = [check for check in event["checks"] if check["status"] == "failed"]
    assert failed["id"] == "plan"
    assert "These would fit: --prompt 2048 --response 4096" in failed["cure"]


def test_a_card_that_somebody_else_uses(folder, engine, capsys, monkeypatch):
    used = Card(**{**vars(P40), "memory_used_mib": 20000.0, "processes": ("python3 (pid 7, 19000 MiB)",)})
    monkeypatch.setattr(nvml, "collect", lambda: HostFacts(driver="550.90.07", cards=(used,)))
    write_model(folder / "model", QWEN)
    assert train("--json") == 1
    (event,) = events(capsys.readouterr().out)
    (failed,) = [check for check in event["checks"] if check["status"] == "failed"]
    assert failed["id"] == "free"
    assert "python3 (pid 7, 19000 MiB)" in failed["message"]


def test_a_disk_that_its_checkpoints_would_fill(folder, engine, capsys, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    write_model(folder / "model", QWEN)
    assert train("--json") == 1
    (event,) = events(capsys.readouterr().out)
    (failed,) = [check for check in event["checks"] if check["status"] == "failed"]
    assert "1.0 GB are free and the checkpoints take" in failed["message"]


def test_a_dry_run_starts_nothing(folder, engine, capsys):
    assert train("--dry-run") == 0
    said = capsys.readouterr().out
    assert "trainer.total_training_steps=2" in said
    assert "would run in localhost/envbuilder/p40-debian:runtime" in said
    assert "yes: ready to train" in said
    assert engine.runs == []
    assert not (folder / "out").exists()


def test_the_script_alone(folder, engine, capsys):
    assert train("--script", "job/train.sh") == 0
    assert (folder / "job/train.sh").stat().st_mode & 0o111
    assert cli.run(["lint", "job/train.sh"]) == 0


@pytest.mark.parametrize(
    ("more", "code", "says"),
    [
        (("--device", "cpu", "--gpu", "0"), 2, "uses none"),
        (("--resume",), 2, "there is no run to resume"),
        (("--micro-batch", "3", "--dry-run"), 1, "not made of micro batches of 3"),
        (("--prompt", "1", "--dry-run"), 1, "0 of 8 rows have a prompt of at most 1 tokens"),
        (("--data", "nowhere", "--dry-run"), 1, "no such file or folder"),
        (("--model", "nowhere", "--dry-run"), 1, "there is no such folder"),
        (("--set", "lr", "--dry-run"), 1, "is no override"),
        (("--reward", "nowhere.py", "--dry-run"), 1, "cannot be read"),
    ],
)
def test_wrong_use(more, code, says, folder, engine, capsys):
    assert train(*more) == code
    captured = capsys.readouterr()
    assert says in " ".join((captured.out + captured.err).split())


def test_files_that_the_container_could_not_read(folder, engine, capsys):
    """Root may read them, the container's user is another."""
    (folder / "model/model.safetensors").chmod(0o600)
    assert train("--dry-run", "--json") == 1
    assert "1 file cannot be read by the container's user (1000)" in capsys.readouterr().out
    (folder / "model").rename(folder / "model:1")
    assert train("--dry-run", "--json", "--model", "model:1") == 1
    assert "a path with a colon cannot be mounted" in capsys.readouterr().out


def test_a_model_of_the_hubs_cache_is_mounted_file_by_file(folder, engine):
    """There every file is a link to a blob elsewhere; two links to one blob would be one mount."""
    (folder / "model").rename(folder / "blobs")
    (folder / "model").mkdir()
    for blob in (folder / "blobs").iterdir():
        (folder / "model" / blob.name).symlink_to(blob)
    assert train() == 0
    assert engine.requests[0].mounts[folder / "blobs/config.json"] == "/model/config.json"
    (folder / "model/again.json").symlink_to(folder / "blobs/config.json")
    assert train("--out", "other") == 1


def test_prompts_that_are_left_out_are_told_before_the_run(folder, engine, capsys):
    write_data(folder / "data", [*rows(8), *rows(2, words=9)])
    assert train("--prompt", "4") == 0
    assert "data: 10 rows; 2 with a prompt over 4 tokens are left out (the longest has 9)" in capsys.readouterr().out


def test_rows_without_a_reward_function(folder, engine, capsys):
    write_data(folder / "data", rows(8, source="my/task"))
    assert train("--dry-run", "--json") == 1
    assert "no reward function for the data source 'my/task'" in capsys.readouterr().out


def steps_of(watch: Watch, samples: Path, memory: list[int]) -> list[dict[str, Any]]:
    """The events of so many steps, each with this many bytes in use in its time."""
    seen = []
    for number, used in enumerate(memory, start=1):
        now = 1000.0 + 10 * number
        (samples / "memory-1.jsonl").write_text(json.dumps([now - 0.5, used, used]) + "\n")
        seen += list(watch.line(STEP.replace("step:1 - ", f"step:{number} - ", 1), now))
    return seen


def test_memory_that_grows_is_told_before_the_card_is_full(tmp_path):
    watch = Watch(100, 0, tmp_path, limit=24_000_000_000)
    seen = steps_of(watch, tmp_path, [13_000_000_000 + 10_000_000 * n for n in range(16)])
    (warning,) = [event["text"] for event in seen if event["event"] == "warning"]
    assert "memory grows by 9.5" in warning
    assert "the card would be full in" in warning
    assert "memory grows" in watch.growth


def test_a_card_that_is_nearly_full_is_told_once(tmp_path):
    seen = steps_of(Watch(100, 0, tmp_path, limit=10_000), tmp_path, [9_900, 9_900])
    assert len([event for event in seen if event["event"] == "warning"]) == 1


def test_what_the_rollout_says_of_itself_is_told_once(tmp_path):
    watch = Watch(2, 0, tmp_path, None)
    line = "(WorkerDict pid=1) rollout: Hugging Face generate is used: no CUDA"
    assert [e["text"] for _ in range(2) for e in watch.line(line, 0.0)] == [
        "rollout: Hugging Face generate is used: no CUDA"
    ]


def test_time_left_is_from_the_last_steps(tmp_path):
    (step,) = [e for e in Watch(11, 0, tmp_path, None).line(STEP, 1.0) if e["event"] == "step"]
    assert math.isclose(step["left_s"], 10 * step["step_s"], rel_tol=0.01)
    assert [duration(s) for s in (3.2, 600, 11_100)] == ["3 s", "10 min", "3 h 05"]


def test_the_live_table_holds_the_last_steps_and_the_trainers_last_line(tmp_path):
    shown = LiveView()
    for event in Watch(20, 0, tmp_path, None).line(STEP, 1.0):
        for number in range(1, 21):
            shown.event({**event, "step": number})
    shown.event({"event": "warning", "text": "the card is nearly full"})
    shown.event({"event": "line", "text": "[markup] is text"})
    console = Console(file=io.StringIO(), width=140)
    console.print(shown.picture())
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "20/20" in text
    assert " 8/20" not in text
    assert "warning: the card is nearly full" in text
    assert "[markup] is text" in text
