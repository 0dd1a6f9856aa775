"""A real buildah with a store of its own, and a small real stack: the Debian base, Python, a few wheels, one sdist."""

import os
import subprocess

import pytest

from envbuilder import data
from envbuilder.fetch.fetching import fetch
from envbuilder.image.buildah import Buildah
from envbuilder.image.host_tools import ensure_programs
from envbuilder.report.progress import Silent
from tests.small_stack import small_stack


@pytest.fixture(scope="session")
def programs():
    """What builds need on this host; installed when it is not there. Without root that is an error with the command."""
    ensure_programs(Silent())


@pytest.fixture(scope="module")
def store(programs, tmp_path_factory):
    """A containers storage that is the test's alone."""
    root = tmp_path_factory.mktemp("storage")
    conf = root / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{root / "graph"}"\nrunroot = "{root / "run"}"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
        yield root
        # Layers are mounted below the folder while buildah works on them; pytest removes it later.
        subprocess.run(["buildah", "rm", "--all"], check=False, capture_output=True)
        subprocess.run(["buildah", "rmi", "--all", "--force"], check=False, capture_output=True)
        subprocess.run(["umount", str(root / "graph" / "overlay")], check=False, capture_output=True)


@pytest.fixture
def buildah(store):
    return Buildah()


@pytest.fixture(scope="module")
def small():
    """(stack, card, lock) of the small stack; all of it fetched."""
    stack, gpu, lock = small_stack()
    fetch(stack, lock, Silent())
    return stack, gpu, lock


@pytest.fixture
def other_cache(tmp_path, monkeypatch):
    """A cache of the test's own: it holds the fetched files and, with ``base``, what was made of them."""
    shared = data.cache_root()
    own = tmp_path / "cache"

    def link(source, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:
            target.write_bytes(source.read_bytes())

    def fill(lock, base=False):
        for artifact in (*lock.python, *lock.debs):
            place = ("sha256", artifact.sha256[:2], artifact.sha256)
            link(shared.joinpath(*place), own.joinpath(*place))
        for path in (shared / "rootfs").iterdir() if base else ():
            link(path, own / "rootfs" / path.name)
        monkeypatch.setenv("ENVBUILDER_CACHE", str(own))
        return own

    return fill
