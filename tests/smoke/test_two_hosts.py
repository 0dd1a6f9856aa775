"""verl's real main_ppo over two hosts by the rendered command: two Ray nodes of one machine, on the CPU, with gloo."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from envbuilder.publish.deploy.job import Folder, Job, image_name
from envbuilder.publish.deploy.rendering import render
from envbuilder.publish.deploy.training import overrides
from envbuilder.smoke.shapes import TOY, read_questions, write_model, write_prompts
from envbuilder.smoke.trainer_log import read_step
from envbuilder.stack.loading import load_stack
from tests.smoke.manifests import ROOT, write_manifest

pytestmark = pytest.mark.e2e
# Sizes for a toy, and the FSDP that runs on a CPU; all else is what the job would run on two cards.
TOY_SETTINGS = [
    "data.max_prompt_length=96", "data.max_response_length=8", "actor_rollout_ref.actor.strategy=fsdp2",
    "critic.strategy=fsdp2", "trainer.total_training_steps=2", "trainer.save_freq=-1",
]  # fmt: skip


def rendered(folder: Path, port: int) -> list[str]:
    """The command that the job starts on every host, with the container's folders put back to those of this one."""
    stack, _ = load_stack("p40-debian")
    settings = overrides(stack, 2, 1, TOY_SETTINGS)
    places = {name: Folder(f"/{name}") for name in ("model", "data", "results")}
    job = Job(stack.name, image_name("registry.lab/p40@sha256:" + "ab" * 32), overrides=settings, nodes=2, **places)
    work = list(yaml.safe_load_all(render("kubernetes", job).text))[-1]
    command: list[str] = work["spec"]["template"]["spec"]["containers"][0]["command"]
    named = {"python3": sys.executable, command[command.index("--head") + 1]: "127.0.0.1", "6379": str(port)}
    command = [named.get(word, word) for word in command]
    for name in places:
        command = [word.replace(f"=/{name}", f"={folder}/{name}") for word in command]
    return command


def test_two_hosts_train_together(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    pairs = read_questions(None)
    (tmp_path / "data").mkdir()
    write_model(tmp_path / "model", TOY, [question for question, _ in pairs], "eager")
    write_prompts(tmp_path / "data" / "train.parquet", pairs)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"},
        "PYTHONPATH": str(ROOT), "ENVBUILDER_STACK": str(write_manifest(tmp_path / "stack.json")),
        "ENVBUILDER_DEVICE": "cpu", "GLOO_SOCKET_IFNAME": "lo", "RAY_enable_worker_prestart": "0",
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    }  # fmt: skip
    hosts = []
    for number in ("1", "0"):
        with (tmp_path / f"host{number}").open("w") as log:
            hosts.append(
                subprocess.Popen(
                    rendered(tmp_path, port),
                    stdout=log,
                    stderr=log,
                    env={**environment, "JOB_COMPLETION_INDEX": number},
                )
            )
    try:
        other, first = hosts
        code = first.wait(timeout=1500)
        told = (tmp_path / "host0").read_text()
        assert code == 0, told[-4000:]
        assert other.wait(timeout=60) == 0, (tmp_path / "host1").read_text()[-2000:]
    finally:
        for process in hosts:
            process.terminate()
            process.wait()
    assert "(2 of 2)" in told
    steps = {step.number: step.metrics for line in told.splitlines() if (step := read_step(line, 0.0))}
    assert sorted(steps) == [1, 2]
    assert all(metrics["actor/grad_norm"] > 0 and metrics["critic/grad_norm"] > 0 for metrics in steps.values())
