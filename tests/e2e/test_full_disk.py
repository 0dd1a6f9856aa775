"""A disk that is too small for an image, or fills up while it comes: one message, and what has come is kept."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e.conftest import Net
from tests.e2e.cutting_line import CuttingLine
from tests.e2e.hosts import RESULTS, Host, refused, wait_for, wrapped_buildah
from tests.e2e.published import MIB, Tiny, comes_whole

pytestmark = pytest.mark.e2e


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """Take all but about ``leave`` bytes of a disk to which somebody is writing."""
    filler = disk / "filler"
    with filler.open("wb") as stream, suppress(OSError):
        while (free := shutil.disk_usage(disk).free) > leave:
            os.posix_fallocate(stream.fileno(), filler.stat().st_size, min(free - leave, 16 * MIB))
    return filler


def test_a_cache_that_is_too_small_is_told_before_anything_comes(second: Host, tiny: Tiny, line: CuttingLine) -> None:
    with small_disk(second.cache, 100):
        refused(second.envbuilder("pull", tiny.at(line.host)), 6, "the disk of the cache has", "are needed")
        assert second.left() == RESULTS
        assert line.passed < MIB / 4


def test_a_cache_that_fills_up_amid_the_transfer(second: Host, tiny: Tiny, line: CuttingLine) -> None:
    with small_disk(second.cache, 400) as disk:
        line.rate = 4 * MIB
        running = second.start("pull", tiny.at(line.host))
        wait_for(lambda: second.fetched() > MIB, running)
        filler = fill(disk, MIB)
        _, errors = running.communicate(timeout=120)
        done = subprocess.CompletedProcess([], running.returncode, "", errors)
        refused(done, 6, "the disk is full", str(second.cache), "what has come is kept")
        assert second.left() == RESULTS
        filler.unlink()
        line.rate, before, kept = None, line.passed, second.kept()
        assert kept > MIB
        comes_whole(second, tiny.at(line.host))
        assert line.passed - before < (tiny.size - kept) * 1.1 + MIB


def test_a_store_that_is_too_small_is_told_before_the_layers_come(
    second: Host, tiny: Tiny, line: CuttingLine, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 300) as disk:
        second.store_in(disk)
        refused(second.envbuilder("pull", tiny.at(line.host)), 6, "images are stored where", str(disk))
        assert second.left() == RESULTS
        assert line.passed < MIB / 4
        second.unmount()


def test_a_store_that_fills_up_amid_the_import(second: Host, tiny: Tiny, tmp_path: Path, net: Net) -> None:
    with small_disk(tmp_path / "disk", 900) as disk:
        second.store_in(disk)
        path = second.environment["PATH"]
        room = 20 * MIB
        take = f"fallocate -l $(( $(df --output=avail -B1 {disk} | tail -1) - {room} )) {disk}/filler"
        second.environment["PATH"] = wrapped_buildah(tmp_path / "bin", take)
        refused(second.envbuilder("pull", tiny.at(net.registry.host)), 6, "the disk is full", str(disk))
        (disk / "filler").unlink()
        second.environment["PATH"] = path
        assert second.left() == RESULTS
        comes_whole(second, tiny.at(net.registry.host))
        second.unmount()
