"""Proving through an engine: a stand-in engine shows what the command makes of hosts, containers and broken output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from envbuilder.errors import HostError, InputError, NotEnoughError
from envbuilder.image.engine import BuildRequest, ImageInfo, RunRequest
from envbuilder.image.proving import Wanted, prove
from envbuilder.report.model import Check, Report, Status, Verdict
from envbuilder.report.progress import Progress, Silent
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.manifest import Manifest
from envbuilder.stack.loading import load_stack
from envbuilder.stack.manifest import image_manifest

P40 = Card(0, "Tesla P40", "GPU-1", "03:00.0", (6, 1))
HOST = HostFacts(driver="550.90.07", cards=(P40, Card(1, "Tesla V100", "GPU-2", "04:00.0", (7, 0))))
REPORT = Report(
    "verify", "p40-debian", Verdict.YES, "1 passed.", checks=(Check("ppo", "PPO", "runs", Status.PASSED),),
    facts={"passport": {"card": "Tesla P40"}, "measured": {}},
)  # fmt: skip


class StandInRun:
    """A container that prints given lines."""

    def __init__(self, lines: list[str], code: int = 0) -> None:
        self.lines, self.code, self.stopped = lines, code, False

    def __iter__(self) -> Iterator[str]:
        for line in self.lines:
            if line == "interrupt":
                raise KeyboardInterrupt
            yield line

    def wait(self) -> int:
        return self.code

    def errors(self) -> str:
        return "the last words"

    def stop(self) -> None:
        self.stopped = True


class StandInEngine:
    """An engine that has one image and runs nothing."""

    name = "stand-in"

    def __init__(self, run: StandInRun | HostError) -> None:
        self.run_, self.request, self.host = run, None, None  # type: ignore[var-annotated]

    def version(self) -> str:
        return "0"

    def build(self, request: BuildRequest, progress: Progress) -> ImageInfo:
        raise NotImplementedError

    def image(self, reference: str) -> ImageInfo | None:
        return ImageInfo(reference, "sha256:id", "sha256:abc", (), {}) if reference == "there" else None

    def identity(self, image: ImageInfo, progress: Progress) -> str:
        return image.id

    def run(self, request: RunRequest) -> StandInRun:
        self.request = request
        for path, inside in request.mounts.items():
            if inside.endswith("host.json"):
                self.host = json.loads(path.read_text())
        if isinstance(self.run_, HostError):
            raise self.run_
        return self.run_


@pytest.fixture
def manifest() -> Manifest:
    data = image_manifest(*load_stack("p40-debian"), lock_digest="")
    return Manifest(data["stack"], data["gpu"], data["lock"], data["builds"])


def lines(*more: str) -> list[str]:
    return [json.dumps({"event": "begin", "id": "ppo", "title": "PPO"}), *more, json.dumps(REPORT.to_dict())]


def test_the_card_is_addressed_by_uuid_and_the_host_told_inside(manifest: Manifest) -> None:
    engine = StandInEngine(StandInRun(lines()))
    report = prove(Wanted("there", 0, only=("ppo",)), engine, manifest, Silent(), HOST)
    assert report.verdict is Verdict.YES
    passport = report.facts["passport"]
    assert (passport["image digest"], passport["image id"]) == ("sha256:abc", "sha256:id")
    assert engine.request is not None
    assert engine.request.gpu == "GPU-1"
    assert engine.request.env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert "--host" in engine.request.command
    assert [card["uuid"] for card in engine.host["gpus"]] == ["GPU-1"]  # type: ignore[index]


def test_a_cpu_run_takes_no_card(manifest: Manifest) -> None:
    engine = StandInEngine(StandInRun(lines()))
    prove(Wanted("there", None, steps=3, soak=True), engine, manifest, Silent(), None)
    assert engine.request is not None
    assert engine.request.gpu is None
    assert list(engine.request.command[3:]) == ["--device", "cpu", "--soak", "--steps", "3"]


@pytest.mark.parametrize(
    ("facts", "gpu", "failed"),
    [
        (HOST, 1, ["card"]),
        (HostFacts(no_driver=True, nvml_error="NVML Shared Library Not Found"), 0, ["driver"]),
        (HostFacts(driver="595.1", cards=(P40,)), 0, ["driver"]),
        (HostFacts(driver="470.1", cards=(P40,)), 0, ["driver"]),
        (HostFacts(driver="550.1", cards=()), 0, ["gpu"]),
    ],
)
def test_a_host_that_cannot_run_it_costs_no_container(
    manifest: Manifest, facts: HostFacts, gpu: int, failed: list[str]
) -> None:
    engine = StandInEngine(StandInRun(lines()))
    report = prove(Wanted("there", gpu), engine, manifest, Silent(), facts)
    assert engine.request is None
    assert report.verdict is Verdict.NO
    assert [check.id for check in report.checks if check.status is Status.FAILED] == failed
    assert all(check.cure for check in report.checks if check.status is Status.FAILED)
    assert next(check for check in report.checks if check.id == "ppo").status is Status.NOT_PROVEN


def test_an_index_that_is_not_there_and_an_image_that_is_not(manifest: Manifest) -> None:
    engine = StandInEngine(StandInRun(lines()))
    with pytest.raises(InputError):
        prove(Wanted("there", 7), engine, manifest, Silent(), HOST)
    with pytest.raises(HostError) as caught:
        prove(Wanted("absent", 0), engine, manifest, Silent(), HOST)
    assert "envbuilder build p40-debian" in (caught.value.cure or "")


def test_an_engine_without_the_nvidia_runtime_is_a_failed_check(manifest: Manifest) -> None:
    engine = StandInEngine(HostError("Docker has no NVIDIA runtime", cure="Install nvidia-container-toolkit."))
    report = prove(Wanted("there", 0), engine, manifest, Silent(), HOST)
    devices = next(check for check in report.checks if check.id == "devices")
    assert devices.status is Status.FAILED
    assert devices.cure == "Install nvidia-container-toolkit."


def test_output_without_a_report_and_output_that_is_no_json(manifest: Manifest) -> None:
    with pytest.raises(NotEnoughError) as caught:
        prove(Wanted("there", 0), StandInEngine(StandInRun(["{}", "Killed"], 137)), manifest, Silent(), HOST)
    assert caught.value.detail == "the last words"
    noisy: list[Any] = lines("a library wrote this")
    assert prove(Wanted("there", 0), StandInEngine(StandInRun(noisy)), manifest, Silent(), HOST).verdict is Verdict.YES


def test_ctrl_c_ends_the_container(manifest: Manifest) -> None:
    run = StandInRun(["interrupt"])
    with pytest.raises(KeyboardInterrupt):
        prove(Wanted("there", 0), StandInEngine(run), manifest, Silent(), HOST)
    assert run.stopped
