"""Proving every card of a Ray cluster: the suite runs on each, pinned to its node, and no node hides another."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from envbuilder.errors import HostError, NotEnoughError
from envbuilder.publish import ray_task
from envbuilder.report.merge import CardReport, merge
from envbuilder.report.model import Report
from envbuilder.report.progress import Progress
from envbuilder.smoke.check import Need
from envbuilder.smoke.registry import select

# The release of the images (locks/*.requirements.txt); a driver and its cluster must have the same.
RAY = "2.49.1"
_CONNECT_SECONDS = 5
# A card that nothing uses is lent as fast as a process starts; the first one of a node also unpacks what it needs.
_LEND_SECONDS = 120
# `follow` answers within seconds, unless its node has gone.
_ANSWER_SECONDS = 60
_START_SECONDS = 120
_END_SECONDS = 15


@dataclass(frozen=True)
class Suite:
    """What to run on every card: the suite's arguments, and how long all of it may take in seconds."""

    arguments: tuple[str, ...]
    limit_s: float


def suite(
    device: str, only: Sequence[str], skip: Sequence[str], *, trainer: bool = False, soak: bool = False, steps: int = 0
) -> Suite:
    """The suite as the user asked for it. Raises InputError for a check that is not there."""
    arguments = ["--device", device]
    for option, names in (("--only", only), ("--skip", skip)):
        arguments += [option, ",".join(names)] if names else []
    arguments += ["--trainer"] if trainer else []
    arguments += ["--soak"] if soak else []
    arguments += ["--steps", str(steps)] if steps else []
    left_out = {Need.TRAINER: not trainer, Need.SOAK: not soak, Need.GPU: device != "cuda"}
    run = [spec for spec in select(only, skip) if not any(left_out[need] for need in spec.needs)]
    return Suite(tuple(arguments), sum(spec.limit_s for spec in run) + _START_SECONDS)


@dataclass
class _Card:
    """One card: its actor, what it was last asked, and what it said so far."""

    host: str
    gpu: str
    actor: Any
    asked: Any
    asked_at: float
    begun_at: float | None = None
    last: dict[str, Any] = field(default_factory=dict)
    result: CardReport | None = None

    def close(self, **known: Any) -> CardReport:
        """Note what became of it."""
        self.result = CardReport(self.host, self.gpu, **known)
        return self.result


def prove_cluster(
    address: str, wanted: Suite, progress: Progress, told: Callable[[CardReport], None] = lambda card: None
) -> Report:
    """Run the suite on every card of the cluster at ``address`` (HOST:PORT, ray://HOST:PORT or auto).

    ``told`` hears of every card as it is done. Raises HostError when there is no Ray here or no cluster there,
    NotEnoughError when the cluster has no card.
    """
    with _connected(address) as ray:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        living = {node["NodeManagerAddress"] for node in nodes}
        dead = sorted({n["NodeManagerAddress"] for n in ray.nodes() if not n["Alive"]} - living)
        cards = [card for node in nodes for card in _cards(ray, node, wanted)]
        bare = [f"{_name(node)} has no card" for node in nodes if not node["Resources"].get("GPU")]
        try:
            if not cards:
                raise NotEnoughError(
                    f"the Ray cluster at {address} has no card on {len(nodes)} node(s)",
                    cure="Ray counts the cards it sees when it starts on a node; `ray status` shows them.",
                )
            _follow_all(ray, cards, wanted, progress, told)
        finally:
            _end_all(ray, [card for card in cards if card.result is None])
    results = [card.result for card in cards if card.result]
    results += [
        CardReport(host, "?", problem="Ray says that this node is dead", cure="Start Ray on it again.", failed=True)
        for host in dead
    ]
    return merge(
        results, f"{len(cards)} card(s) of {len(nodes) - len(bare)} host(s) in the Ray cluster at {address}", bare
    )


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Any]:
    _want_answer(address)
    try:
        import ray
    except ImportError:
        raise HostError(
            "Ray is not installed here",
            cure=f"Install it beside envbuilder: pip install ray=={RAY} (the extra `ray`), "
            "under the Python release of the cluster.",
        ) from None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        text = str(error).strip()
        cure = f"`ray status --address {address}` shows whether it runs; from another machine use ray://HEAD:10001."
        if "ersion" in text:
            cure = f"Run this command under the cluster's own releases of Python and Ray; here: {_here(ray)}."
        raise HostError(f"the Ray cluster at {address} cannot be joined", detail=text, cure=cure) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _here(ray: Any) -> str:
    return f"Python {sys.version.split()[0]}, Ray {ray.__version__}"


def _want_answer(address: str) -> None:
    """Raise HostError when nothing listens at the address: Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if address == "auto":
        return
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "that is no HOST:PORT"
        raise HostError(
            f"nothing answers at {address}: {why or error}",
            cure="Give the head's HOST:PORT (ray start names it, mostly port 6379), or ray://HOST:10001.",
        ) from None


def _name(node: dict[str, Any]) -> str:
    name: str = node.get("NodeManagerHostname") or node["NodeManagerAddress"]
    return name


def _cards(ray: Any, node: dict[str, Any], wanted: Suite) -> list[_Card]:
    """An actor a card: it holds the card from before the first suite starts, so that no two are lent the same one."""
    from ray import cloudpickle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    cloudpickle.register_pickle_by_value(ray_task)
    pinned = NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False)
    remote = ray.remote(num_gpus=1, num_cpus=0, max_restarts=0, scheduling_strategy=pinned)(ray_task.CardRun)
    actors = [remote.remote() for _ in range(int(node["Resources"].get("GPU", 0)))]
    now = time.monotonic()
    return [
        _Card(_name(node), str(number), actor, actor.begin.remote(list(wanted.arguments)), now)
        for number, actor in enumerate(actors)
    ]


def _follow_all(
    ray: Any, cards: list[_Card], wanted: Suite, progress: Progress, told: Callable[[CardReport], None]
) -> None:
    """Hear every card until all have a result."""
    while waiting := [card for card in cards if card.result is None]:
        ready, _ = ray.wait([card.asked for card in waiting], num_returns=1, timeout=1.0)
        for card in waiting:
            _hear(ray, card, ready, wanted, progress)
            if card.result is not None:
                done = sum(c.result is not None for c in cards)
                progress.item(f"{done} of {len(cards)} cards done")
                told(card.result)
        _end_all(ray, [card for card in waiting if card.result is not None])


def _hear(ray: Any, card: _Card, ready: list[Any], wanted: Suite, progress: Progress) -> None:
    """Take in what a card answered, or that it does not answer any more."""
    now = time.monotonic()
    if card.asked not in ready:
        _late(card, wanted, now)
        return
    try:
        answer = ray.get(card.asked)
    except ray.exceptions.RayError as error:
        lines = [line for line in str(error).strip().splitlines() if line.strip()]
        card.close(
            problem=f"the node or its worker died: {lines[0] if lines else type(error).__name__}",
            cure="See the node's own log (dmesg, and Ray's under /tmp/ray/session_latest/logs).",
            failed=True,
        )
        return
    if card.begun_at is None:
        card.begun_at, card.host, card.gpu = now, answer["host"], str(answer["gpu"])
        if answer["missing"]:
            card.close(problem=answer["missing"], cure="Start Ray inside the image on that node: docs/hosts.md.")
            return
    else:
        _take(card, answer["lines"], progress)
        if answer["code"] is not None:
            _finish(card, answer)
            return
    card.asked, card.asked_at = card.actor.follow.remote(), now


def _late(card: _Card, wanted: Suite, now: float) -> None:
    if card.begun_at is None and now - card.asked_at > _LEND_SECONDS:
        card.close(
            problem=f"Ray did not lend this card within {_LEND_SECONDS} s",
            cure="Something uses it: `ray status` shows what; end that, or wait for it.",
        )
    elif card.begun_at is not None and now - card.asked_at > _ANSWER_SECONDS:
        card.close(
            problem=f"the node has not answered for {_ANSWER_SECONDS} s", cure="See whether it still runs.", failed=True
        )
    elif card.begun_at is not None and now - card.begun_at > wanted.limit_s:
        card.close(
            problem=f"not done after {wanted.limit_s:.0f} s", cure="Run the suite there alone to see.", failed=True
        )


def _take(card: _Card, lines: list[str], progress: Progress) -> None:
    for line in lines:
        progress.log(f"{card.host} GPU {card.gpu}: {line}")
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue  # something else wrote to standard output
        card.last = event
        if event.get("event") == "begin":
            progress.item(f"{card.host} GPU {card.gpu}: {event['title']}")


def _finish(card: _Card, answer: dict[str, Any]) -> None:
    if card.last.get("command") == "verify":
        card.close(report=card.last)
        return
    detail = "; ".join(answer["errors"][-3:])
    card.close(
        problem=f"the suite ended without a report (exit code {answer['code']}): {detail}",
        cure="Run it there alone: python3 -m envbuilder.smoke",
        failed=True,
    )


def _end_all(ray: Any, cards: list[_Card]) -> None:
    """End the suites, then their processes; a node that does not answer is not waited for."""
    if not cards:
        return
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait([card.actor.end.remote() for card in cards], num_returns=len(cards), timeout=_END_SECONDS)
    for card in cards:
        with contextlib.suppress(ray.exceptions.RayError, ValueError):
            ray.kill(card.actor)
