"""Two hosts with a cable between them, a real registry on the first, and a certificate authority both trust."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.image.host_tools import ensure_programs
from envbuilder.report.progress import Silent
from tests.e2e.certificates import Authority
from tests.e2e.hosts import Host, Namespace, link, namespaces
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


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    ensure_programs(Silent())
    folder = tmp_path_factory.mktemp("net")
    authority = Authority(folder / "authority")
    with namespaces("first", "second") as (first, second):
        link(first, second)
        with registry_at(folder / "registry", first, authority, PORT) as registry:
            yield Net(folder, first, second, authority, registry)


@pytest.fixture
def second(net: Net, tmp_path: Path) -> Iterator[Host]:
    """A second host of the test's own."""
    host = net.host(tmp_path / "second")
    yield host
    host.remove()
