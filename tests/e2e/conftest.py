"""Two hosts with a cable between them, a real registry on the first, and a certificate authority both trust."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.image.host_tools import ensure_programs
from envbuilder.report.progress import Silent
from tests.e2e.certificates import Authority
from tests.e2e.cutting_line import CuttingLine
from tests.e2e.hosts import Host, Namespace, link, namespaces
from tests.e2e.published import Tiny, publish_tiny
from tests.e2e.real_registry import RealRegistry, registry_at

PORT = 5000


@dataclass
class Net:
    """Both namespaces, the authority, and the registry in the first of them."""

    folder: Path
    first: Namespace
    second: Namespace
    authority: Authority
    registry: RealRegistry

    def host(self, root: Path) -> Host:
        """A new second host: it has nothing yet."""
        return Host(root, self.second, self.authority.path)

    @contextmanager
    def on_first(self, home: Path) -> Iterator[None]:
        """This process on the first host, as somebody who has logged in nowhere; it keeps its things in ``home``."""
        with pytest.MonkeyPatch.context() as patch, self.first.inside():
            for name in [name for name in os.environ if name.lower().endswith(("_proxy", "_ca_bundle"))]:
                patch.delenv(name)
            patch.setenv("ENVBUILDER_CACHE", str(home / "cache"))
            patch.setenv("HOME", str(home))
            patch.setenv("XDG_RUNTIME_DIR", str(home))
            patch.setenv("SSL_CERT_FILE", str(self.authority.path))
            yield


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    ensure_programs(Silent())
    folder = tmp_path_factory.mktemp("net")
    authority = Authority(folder / "authority")
    with namespaces("first", "second") as (first, second):
        link(first, second)
        with registry_at(folder / "registry", first, authority, PORT) as registry:
            yield Net(folder, first, second, authority, registry)


@pytest.fixture(scope="module")
def tiny(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The tiny image in the registry."""
    with net.on_first(tmp_path_factory.mktemp("first")):
        return publish_tiny(net.registry.host)


@pytest.fixture
def line(net: Net) -> Iterator[CuttingLine]:
    """A line to the registry at a port of its own."""
    made = CuttingLine(net.first, PORT + 1, PORT)
    yield made
    made.close()


@pytest.fixture
def second(net: Net, tmp_path: Path) -> Iterator[Host]:
    """A second host of the test's own."""
    host = net.host(tmp_path / "second")
    yield host
    host.remove()


@pytest.fixture
def island(tmp_path: Path) -> Iterator[Host]:
    """A host without any network."""
    with namespaces("island") as (namespace,):
        host = Host(tmp_path / "island", namespace)
        yield host
        host.remove()
