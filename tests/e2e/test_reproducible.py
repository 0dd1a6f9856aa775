"""Same lock, same digest: checkouts in other folders, with other users, clocks, languages, umasks, groups, storages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from envbuilder.fetch.fetching import fetch
from envbuilder.image.host_tools import ensure_programs
from envbuilder.lock.model import Lock
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from tests.e2e.checkouts import Checkout, Surroundings, another_user
from tests.small_stack import small_stack

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("buildah")]
IMAGE = "localhost/envbuilder/p40-debian:runtime"


@pytest.fixture(scope="module")
def user() -> Iterator[str]:
    """A user without root, and what buildah needs for one beside its own package."""
    ensure_programs(Silent())
    needed = {"fuse-overlayfs": "fuse-overlayfs", "newuidmap": "uidmap"}
    if missing := [package for program, package in needed.items() if not shutil.which(program)]:
        subprocess.run(["apt-get", "install", "--yes", "--no-install-recommends", *missing], check=True)
    with another_user(f"envbuilder-{os.getpid()}") as name:
        yield name


ELSEWHERE = {"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "LANG": "de_DE.UTF-8"}


def two(root: Path, lock: Lock, user: str, storage: str = "overlay") -> tuple[Checkout, Checkout]:
    """Root's checkout, and that of a user without root: they differ in all that a build could take from its host."""
    here = Surroundings("here", environment={"TZ": "UTC", "LC_ALL": "C"})
    there = Surroundings("somewhere else's/x y", user, "077", shared_group=True, environment=ELSEWHERE, storage=storage)
    return Checkout(root, here, lock), Checkout(root, there, lock)


def test_ten_builds_of_the_small_stack_have_one_digest(tmp_path: Path, user: str) -> None:
    stack, _, lock = small_stack()
    fetch(stack, lock, Silent())
    checkouts = two(tmp_path, lock, user)
    found = []
    for number in range(10):
        found.append(checkouts[number % 2].build("small"))
        checkouts[number % 2].empty()
    assert len({build["id"] for build in found}) == 1, found
    # A storage without root writes its layers in its own way, so this was no comparison of an image with itself.
    assert len({build["stored"] for build in found}) == 2, found


@pytest.mark.parametrize("storage", ["fuse-overlayfs", "vfs"])
def test_every_storage_gives_the_same_digest(tmp_path: Path, user: str, storage: str) -> None:
    stack, _, lock = small_stack()
    fetch(stack, lock, Silent())
    found = []
    for checkout in two(tmp_path, lock, user, storage):
        found.append(checkout.build("small"))
        checkout.empty()
    assert found[0]["id"] == found[1]["id"], found
    assert found[0]["layers"] != found[1]["layers"]


def test_the_real_image_has_one_digest_and_says_so_itself(tmp_path: Path, user: str) -> None:
    """Built by root, out of its own lock again, and by a user without root, whose archive is the very image too."""
    stack, _ = load_stack("p40-debian")
    lock = load_lock(stack)
    fetch(stack, lock, Silent(), ("runtime",))
    here, there = two(tmp_path, lock, user)
    first = here.build("p40-debian")
    again = here.run("-m", "envbuilder", "reproduce", IMAGE, "--engine", "buildah", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["facts"]["level"] == "digest-equal"
    published = here.published(IMAGE)
    here.empty()
    second = there.build("p40-debian")
    assert second["id"] == first["id"]
    assert there.published(IMAGE) == published
    there.empty()
