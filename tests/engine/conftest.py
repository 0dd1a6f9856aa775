"""A real buildah with a store of its own, and a small real stack: the Debian base, Python, a few wheels, one sdist."""

import os
import subprocess

import pytest

from envbuilder import data
from envbuilder.fetch.fetching import fetch
from envbuilder.image.buildah import Buildah
from envbuilder.image.host_tools import ensure_programs
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack

# setuptools builds the sdist; pyyaml holds a compiled module.
SMALL = ("setuptools", "antlr4-python3-runtime", "idna", "packaging", "pyyaml")


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
    """(stack, card, lock) of a small stack whose artifacts are a part of p40-debian's; all of them fetched."""
    stack, gpu = load_stack("p40-debian")
    whole = load_lock(stack)
    pins = {name: pin for name, pin in stack.python.packages.items() if name in SMALL}
    part = stack.python.model_copy(update={"packages": pins})
    stack = stack.model_copy(update={"name": "small", "title": "A small stack for tests", "python": part})
    base = whole.debian.model_copy(update={"packages": tuple(d for d in whole.debs if d.target == "runtime")})
    python = tuple(a for a in whole.python if a.name in SMALL)
    lock = whole.model_copy(update={"stack": "small", "python": python, "debian": base})
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
