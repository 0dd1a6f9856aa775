"""The real p40-debian on another host: through a registry over TLS, as an archive, and as a bundle without a network.

What runs there is the suite in the image, as far as a CPU answers it. Nothing of an image or an archive stays longer
than it is needed: 21 GB of disk are in use at most.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envbuilder.fetch.fetching import fetch
from envbuilder.image.names import image_tag
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from tests.e2e.conftest import Net
from tests.e2e.hosts import RESULTS, Host, refused, until_said
from tests.e2e.published import digests
from tests.e2e.tampering import flipped_member

pytestmark = pytest.mark.e2e

STACK = "p40-debian"
IMAGE = image_tag(STACK)
# What a CPU can answer of this stack, which holds no Apex.
ANSWERED = {"imports", "slim", "arch", "cudnn", "guard", "matmul", "convolution", "generate", "one-token", "ppo"}


@dataclass(frozen=True)
class Made:
    """What the first host has given away: the image in the registry, as ``push`` tells of it, and as an archive."""

    pushed: dict[str, Any]
    largest: str
    archive: Path


@pytest.fixture(scope="module")
def lock() -> Lock:
    """The stack's lock, with all its files at hand."""
    stack, _ = load_stack(STACK)
    lock = load_lock(stack)
    fetch(stack, lock, Silent())
    return lock


@pytest.fixture(scope="module")
def made(net: Net, lock: Lock, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    """Built, pushed and saved on the first host, which then keeps nothing."""
    folder = tmp_path_factory.mktemp("made")
    host = Host(folder / "first", net.first, net.authority.path)
    archive = folder / "image.tar"
    try:
        host.has_fetched((*lock.python, *lock.debs))
        said(host, "build", STACK, "--engine", "buildah")
        pushed = said(host, "push", STACK, f"{net.registry.host}/team/{STACK}:1")
        largest = digests(host, pushed["digest"])[1][-1]
        assert said(host, "save", STACK, str(archive))["digest"] == pushed["digest"]
    finally:
        host.remove()
    yield Made(pushed, largest, archive)
    archive.unlink(missing_ok=True)


def said(host: Host, *arguments: str) -> Any:
    """What a command that has to work says, as JSON."""
    done = host.envbuilder(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def proven(host: Host, lock: Lock, made: Made, *more: str) -> str:
    """The suite passes in the image that ``made`` is on ``host``, for a user without privileges.

    The digest that the passport has of the image.
    """
    who = host.inside(IMAGE, "id", "-u")
    assert who.stdout.strip() == "1000", who.stderr
    done = host.envbuilder("verify", "--device", "cpu", "--image", IMAGE, *more, "--json")
    report = json.loads(done.stdout)
    # Of a card nothing is proven.
    assert (done.returncode, report["verdict"]) == (3, "not enough to tell"), done.stderr
    status = {check["id"]: check["status"] for check in report["checks"]}
    answered = ANSWERED | ({"trainer"} if "--trainer" in more else set())
    assert {name for name, found in status.items() if found == "passed"} == answered, status
    assert {found for name, found in status.items() if name not in answered} == {"not proven here"}, status
    passport = report["facts"]["passport"]
    known = {"stack": STACK, "lock": lock.digest, "image": IMAGE, "image id": made.pushed["config"]}
    assert {key: passport[key] for key in known} == known
    return str(passport["image digest"])


def test_pulled_by_digest_and_proven(second: Host, net: Net, lock: Lock, made: Made) -> None:
    with net.registry.tampered(made.largest):
        refused(second.envbuilder("pull", made.pushed["pinned"]), 5, net.registry.host, "Nothing of it was kept")
        assert second.left() == RESULTS
    pulled = said(second, "pull", made.pushed["pinned"])
    assert (pulled["digest"], pulled["id"]) == (made.pushed["digest"], made.pushed["config"])
    net.registry.empty()
    assert proven(second, lock, made, "--trainer", "--steps", "2") == made.pushed["digest"]


def test_loaded_without_a_network_and_proven(island: Host, lock: Lock, made: Made) -> None:
    with flipped_member(made.archive) as name:
        done = island.envbuilder("load", str(made.archive))
        refused(done, 5, f"the bytes of {name} are not those of its name")
        assert island.left() == RESULTS
    loaded = said(island, "load", str(made.archive))
    assert (loaded["digest"], loaded["id"]) == (made.pushed["digest"], made.pushed["config"])
    made.archive.unlink()
    proven(island, lock, made)


def test_built_from_a_bundle_without_a_network_and_proven(
    island: Host, net: Net, lock: Lock, made: Made, tmp_path: Path
) -> None:
    """The bundle comes from a host that never built the image."""
    bundle = tmp_path / "a.bundle"
    packer = Host(tmp_path / "packer", net.first)
    packer.has_fetched((*lock.python, *lock.debs))
    said(packer, "bundle", STACK, str(bundle))
    packer.remove()
    build = ("build", "--engine", "buildah", "--bundle", str(bundle))
    with flipped_member(bundle) as name:
        refused(island.envbuilder(*build), 5, f"the bytes of {name} are not those of its name")
        assert island.left() == RESULTS
    building = island.start(*build, "--json")
    begun = until_said(building, "done  unpacking")
    bundle.unlink()
    out, errors = building.communicate(timeout=600)
    assert building.returncode == 0, begun + errors
    assert json.loads(out)["id"] == made.pushed["config"]
    proven(island, lock, made)
