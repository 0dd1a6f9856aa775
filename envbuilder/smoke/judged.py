"""The checks that judge what was reported: run live in the image, and over a replayed file by ``verify --probe``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envbuilder.smoke.check import Outcome
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judge import binaries, driver, health, identity
from envbuilder.smoke.manifest import Manifest


@dataclass(frozen=True)
class Case:
    """What a judge looks at: the facts, the card under test, the stack where one is named, the known torch builds."""

    facts: HostFacts
    card: Card
    manifest: Manifest | None = None
    builds: dict[str, tuple[str, ...]] | None = None

    @property
    def minimum_driver(self) -> str | None:
        """The stack's own floor for the driver."""
        return self.manifest.stack["cuda"]["minimum_driver"] if self.manifest else None


@dataclass(frozen=True)
class Judged:
    """A check by judgement. ``per_card`` ones are made for every card that was asked for."""

    id: str
    title: str
    proves: str
    judge: Callable[[Case], Outcome]
    per_card: bool = True
    needs_card: bool = True


JUDGED = (
    Judged(
        "gpu", "a GPU", "the driver shows a GPU", lambda c: identity.judge_present(c.facts),
        per_card=False, needs_card=False,
    ),
    Judged(
        "driver", "driver", "the driver knows the card and is new enough for the stack's CUDA",
        lambda c: driver.judge_driver(c.facts, c.card, c.minimum_driver), needs_card=False,
    ),
    Judged(
        "devices", "NVIDIA runtime and device files", "a container gets what CUDA needs",
        lambda c: driver.judge_devices(c.facts), per_card=False, needs_card=False,
    ),
    Judged(
        "visible", "devices that CUDA sees", "CUDA sees the card that the driver shows",
        lambda c: identity.judge_visible(c.facts, c.card), needs_card=False,
    ),
    Judged(
        "card", "card", "the card is the one the stack is for",
        lambda c: identity.judge_card(c.card, c.manifest),
    ),
    Judged(
        "order", "order of the cards", "an index means the same card to nvidia-smi and to this run",
        lambda c: identity.judge_order(c.facts, c.card),
    ),
    Judged(
        "arch", "arch list against the card", "torch's build holds code that the card runs",
        lambda c: binaries.judge_arch(c.facts, c.card, c.builds or (c.manifest.builds if c.manifest else {})),
    ),
    Judged(
        "kernel", "a kernel on the card", "a kernel is really launched and comes back",
        lambda c: driver.judge_kernel(c.facts),
    ),
    Judged(
        "bf16", "bfloat16", "which dtype the card computes in, told by its capability",
        lambda c: binaries.judge_bf16(c.facts, c.card),
    ),
    Judged(
        "cudnn", "cuDNN that torch loads", "torch loads the cuDNN of its own wheel, whatever the system holds",
        lambda c: binaries.judge_cudnn(c.facts), per_card=False, needs_card=False,
    ),
    Judged(
        "temperature", "temperature", "the card is cool enough to run for hours",
        lambda c: health.judge_temperature(c.facts, c.card),
    ),
    Judged(
        "log", "kernel log", "the driver logged no hardware fault", lambda c: health.judge_log(c.facts),
        per_card=False, needs_card=False,
    ),
    Judged("ecc", "ECC", "the card's memory is sound", lambda c: health.judge_ecc(c.card)),
    Judged("pcie", "PCIe link", "the card is connected at its width", lambda c: health.judge_pcie(c.card, c.manifest)),
    Judged("clocks", "clocks and power", "the card's state, to compare hosts", lambda c: health.judge_clocks(c.card)),
    Judged(
        "processes", "other programs on the card", "the card's memory is free",
        lambda c: health.judge_processes(c.card, c.manifest),
    ),
)  # fmt: skip
