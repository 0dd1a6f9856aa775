"""The real image, twice from nothing: same digest, what is in it runs, and what it costs in time and disk."""

import subprocess
import threading
import time

import pytest

from envbuilder import data
from envbuilder.fetch.fetching import fetch
from envbuilder.image.buildah import Buildah
from envbuilder.image.building import build_stack
from envbuilder.image.engine import RunRequest
from envbuilder.image.host_tools import ensure_programs
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack

pytestmark = pytest.mark.e2e


def used(*folders):
    """Bytes on disk below the folders; files that are linked twice count once."""
    found = subprocess.run(["du", "-sxc", "-B1", *map(str, folders)], capture_output=True, text=True, check=False)
    return int(found.stdout.splitlines()[-1].split()[0])


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """A cache and a store that hold nothing but what was fetched."""
    ensure_programs(Silent())
    stack, gpu = load_stack("p40-debian")
    lock = load_lock(stack)
    fetched = fetch(stack, lock, Silent(), ("runtime",))
    shared, own = data.cache_root(), tmp_path / "cache"
    for file in (*fetched.python, *fetched.debs):
        target = own / file.path.relative_to(shared)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(file.path)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(own))
    conf = tmp_path / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/graph"\nrunroot = "{tmp_path}/run"\n')
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
    yield stack, gpu, lock
    subprocess.run(["buildah", "rmi", "--all", "--force"], check=False, capture_output=True)
    subprocess.run(["umount", str(tmp_path / "graph" / "overlay")], check=False, capture_output=True)


def test_twice_the_same_bits(fresh, tmp_path, capsys):
    peak, done = 0, threading.Event()

    def watch():
        nonlocal peak
        while not done.wait(5):
            peak = max(peak, used(tmp_path / "cache", tmp_path / "graph"))

    watcher = threading.Thread(target=watch)
    watcher.start()
    started = time.monotonic()
    try:
        first = build_stack(*fresh, Buildah(), Silent())
    finally:
        done.set()
        watcher.join()
    seconds = time.monotonic() - started
    with capsys.disabled():
        print(f"\nbuild {seconds:.0f} s, image {first.image.size / 1e9:.2f} GB, peak disk {peak / 1e9:.2f} GB")
    for base in (data.cache_root() / "rootfs").iterdir():
        base.unlink()
    second = build_stack(*fresh, Buildah(), Silent(), cache=False)
    assert second.identity == first.identity

    run = Buildah().run(
        RunRequest(first.image.reference, ("python", "-c", "import torch, verl; print(torch.__version__)"))
    )
    assert [*run] == ["2.6.0+cu124"]
    assert run.wait() == 0
    for program in ("gcc", "cc", "g++", "nvcc", "pip", "make"):
        run = Buildah().run(RunRequest(first.image.reference, ("sh", "-c", f"command -v {program}")))
        assert [*run] == [], program
        assert run.wait() != 0
