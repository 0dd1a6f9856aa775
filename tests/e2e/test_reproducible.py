"""Same lock, same digest: two checkouts in other folders, with other clocks, languages, umasks, groups and storages."""

from __future__ import annotations

import json
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
    with another_user("envbuilder-e2e") as name:
        yield name


ELSEWHERE = {"TZ": "Asia/Kathmandu", "LC_ALL": "tr_TR.UTF-8", "LANG": "de_DE.UTF-8"}


def two(root: Path, lock: Lock) -> tuple[Checkout, Checkout]:
    """Two checkouts whose surroundings differ in all that a build could take from its host."""
    here = Surroundings("here", environment={"TZ": "UTC", "LC_ALL": "C"})
    there = Surroundings("somewhere else's/x y", umask="077", shared_group=True, environment=ELSEWHERE)
    return Checkout(root, here, lock), Checkout(root, there, lock)


def test_ten_builds_of_the_small_stack_have_one_digest(tmp_path: Path) -> None:
    ensure_programs(Silent())
    stack, _, lock = small_stack()
    fetch(stack, lock, Silent())
    checkouts = two(tmp_path, lock)
    found = []
    for number in range(10):
        found.append(checkouts[number % 2].build("small"))
        checkouts[number % 2].empty()
    assert len({(build["digest"], build["id"]) for build in found}) == 1, found


def test_without_root_the_content_is_the_same(tmp_path: Path, user: str) -> None:
    """Another user's storage works otherwise: what a step touched without changing it is in no layer there."""
    stack, _, lock = small_stack()
    fetch(stack, lock, Silent())
    root = Checkout(tmp_path, Surroundings("root"), lock)
    other = Checkout(tmp_path, Surroundings("no root", user, "077", shared_group=True, environment=ELSEWHERE), lock)
    archives = []
    for checkout in (root, other):
        checkout.build("small")
        archives.append(str(checkout.archive("localhost/envbuilder/small:runtime")))
    report = root.run("-m", "envbuilder", "reproduce", archives[0], "--compare", archives[1], "--json")
    assert json.loads(report.stdout)["facts"]["level"] == "content-equal", report.stdout
    for checkout in (root, other):
        checkout.empty()


def test_the_real_image_has_one_digest_and_says_so_itself(tmp_path: Path) -> None:
    ensure_programs(Silent())
    stack, _ = load_stack("p40-debian")
    lock = load_lock(stack)
    fetch(stack, lock, Silent(), ("runtime",))
    here, there = two(tmp_path, lock)
    first = here.build("p40-debian")
    again = here.run("-m", "envbuilder", "reproduce", IMAGE, "--engine", "buildah", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["facts"]["level"] == "digest-equal"
    here.empty()
    second = there.build("p40-debian")
    there.empty()
    assert second["layers"] == first["layers"]
    assert second["digest"] == first["digest"]
