"""A registry that does not let one in: no login, a login that is good no more, a certificate out of its dates."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import PORT, Net
from tests.e2e.cutting_line import CuttingLine
from tests.e2e.hosts import RESULTS, Host, refused, wait_for
from tests.e2e.published import MIB, Tiny, comes_whole
from tests.e2e.real_registry import PASSWORD, USER, registry_at, write_users

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def guarded(net: Net, tiny: Tiny) -> Iterator[tuple[str, Path]]:
    """The same storage behind a registry that asks who is there: its address, and the file that says who may."""
    users = net.folder / "users"
    write_users(users, USER)
    with registry_at(net.registry.folder, net.first, net.authority, PORT + 3, users=users) as registry:
        yield registry.host, users


def log_in(second: Host, host: str, password: str) -> Path:
    """What ``docker login`` leaves behind."""
    path = second.home / ".docker" / "config.json"
    path.parent.mkdir(exist_ok=True)
    known = base64.b64encode(f"{USER}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": known}}}))
    return path


def test_without_a_login_the_command_for_it_is_named(second: Host, guarded: tuple[str, Path], tiny: Tiny) -> None:
    host, _ = guarded
    done = second.envbuilder("pull", tiny.at(host))
    refused(done, 4, f"{host} wants a login to pull from team/tiny", f"login {host}")
    assert second.left() == RESULTS


def test_a_login_that_is_no_longer_good_is_named_with_its_store(
    second: Host, guarded: tuple[str, Path], tiny: Tiny
) -> None:
    host, _ = guarded
    store = log_in(second, host, "wrong")
    done = second.envbuilder("pull", tiny.at(host))
    refused(done, 4, f"{host} refuses the login of '{USER}' that {store} holds", f"docker login {host}")
    assert "wrong" not in done.stderr, "no password in a message"
    assert second.left() == RESULTS
    log_in(second, host, PASSWORD)
    comes_whole(second, tiny.at(host))


def test_a_login_that_is_withdrawn_amid_the_transfer(
    second: Host, net: Net, guarded: tuple[str, Path], tiny: Tiny
) -> None:
    """The line breaks, and by the time it is taken up again the login is good no more."""
    _, users = guarded
    line = CuttingLine(net.first, PORT + 4, PORT + 3)
    try:
        store = log_in(second, line.host, PASSWORD)
        line.rate = 4 * MIB
        running = second.start("pull", tiny.at(line.host))
        wait_for(lambda: second.fetched() > 3 * MIB, running)
        write_users(users, "somebody-else")
        line.cut_after, line.cuts = 1, 10**6
        wait_for(lambda: line.cuts < 10**6, running)
        line.cuts, line.rate = 0, None
        _, errors = running.communicate(timeout=120)
        done = subprocess.CompletedProcess([], running.returncode, "", errors)
        refused(done, 4, f"refuses the login of '{USER}' that {store} holds", "withdrawn")
        assert second.left() == RESULTS
        kept = second.kept()
        assert kept > 3 * MIB
        write_users(users, USER)
        before = line.passed
        comes_whole(second, tiny.at(line.host))
        assert line.passed - before < (tiny.size - kept) * 1.1 + MIB
    finally:
        write_users(users, USER)
        line.close()


@pytest.mark.parametrize(("days", "says"), [((-30, -1), "has expired"), ((1, 30), "is not valid yet")])
def test_a_clock_that_is_wrong_is_told_from_a_registry_that_is_not_trusted(
    second: Host, net: Net, tiny: Tiny, days: tuple[int, int], says: str
) -> None:
    """Dates of the certificate in the place of this host's clock: to a client both are the same."""
    with registry_at(net.registry.folder, net.first, net.authority, PORT + 5, days=days) as registry:
        done = second.envbuilder("pull", tiny.at(registry.host))
        refused(done, 4, f"the certificate of {registry.host} {says}, by this host's clock", "timedatectl")
    assert second.left() == RESULTS
    second.environment["SSL_CERT_FILE"] = "/etc/ssl/certs/ca-certificates.crt"
    refused(second.envbuilder("pull", tiny.at(net.registry.host)), 4, "is not trusted here", "SSL_CERT_FILE")
