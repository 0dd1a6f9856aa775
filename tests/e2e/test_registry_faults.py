"""Everything that can go wrong between a registry and a second host: nothing lost, nothing half-installed, one message.

The registry, the namespaces, TLS and buildah are real; the image is a stand-in of some megabytes.
"""

import base64
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.e2e import lying_registry as lying
from tests.e2e.conftest import PORT, Net
from tests.e2e.cutting_line import CuttingLine
from tests.e2e.hosts import FIRST, RESULTS, Host, kill, refused, wait_for
from tests.e2e.published import TINY, Tiny, publish_tiny
from tests.e2e.real_registry import PASSWORD, USER, registry_at, write_users

pytestmark = pytest.mark.e2e

MEGABYTE = 2**20
DONE = {**RESULTS, "images": [TINY]}


@pytest.fixture(scope="module")
def first(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process on the first host, as somebody who has logged in nowhere."""
    home = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch, net.first.inside():
        for name in [name for name in os.environ if name.lower().endswith(("_proxy", "_ca_bundle"))]:
            patch.delenv(name)
        patch.setenv("ENVBUILDER_CACHE", str(home / "cache"))
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_RUNTIME_DIR", str(home))
        patch.setenv("SSL_CERT_FILE", str(net.authority.path))
        yield


@pytest.fixture(scope="module")
def tiny(net: Net, first: None) -> Tiny:
    """The image in the registry."""
    return publish_tiny(net.registry.host)


@pytest.fixture
def line(net: Net) -> Iterator[CuttingLine]:
    """A line to the registry at a port of its own."""
    made = CuttingLine(net.first, PORT + 1, PORT)
    yield made
    made.close()


@pytest.fixture
def liar(net: Net) -> Iterator[lying.LyingRegistry]:
    certificate = net.authority.issue("liar", FIRST)
    made = lying.LyingRegistry(net.first, PORT + 2, PORT, certificate, net.authority.path)
    yield made
    made.close()


def whole(second: Host, reference: str) -> None:
    """What was begun comes to its end; nothing else is left."""
    done = second.envbuilder("pull", reference)
    assert done.returncode == 0, done.stderr
    assert second.left() == DONE
    assert second.fetched() == 0


# --- a registry that drops -------------------------------------------------------------------------------------------


def test_a_line_that_breaks_is_taken_up_again_where_it_broke(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.cut_after, line.cuts = 3 * MEGABYTE, 5
    whole(second, tiny.at(line.host))
    assert line.cuts == 0, "it did break"
    # Nothing comes twice; TLS and HTTP add a little.
    assert line.passed < tiny.size * 1.1, (line.passed, tiny.size)


@pytest.mark.parametrize("reset", [True, False])
def test_a_line_that_keeps_breaking_is_told_and_the_next_run_goes_on(
    second: Host, line: CuttingLine, tiny: Tiny, reset: bool
) -> None:
    line.reset = reset
    line.cut_after, line.cuts = 3 * MEGABYTE, 4
    wait_until_stuck = second.start("pull", tiny.at(line.host))
    wait_for(lambda: line.cuts == 0, wait_until_stuck)
    # From now on nothing gets through, and nothing more is said about it than once.
    line.cut_after, line.cuts = 0, 10**6
    _, errors = wait_until_stuck.communicate(timeout=300)
    assert "certificate" not in errors, "a line that breaks amid TLS says nothing of certificates"
    refused(subprocess.CompletedProcess([], wait_until_stuck.returncode, "", errors), 4, line.host, "keeps breaking")
    assert second.left() == RESULTS
    kept = second.kept()
    assert kept > 3 * MEGABYTE
    line.cuts, before = 0, line.passed
    whole(second, tiny.at(line.host))
    assert line.passed - before < (tiny.size - kept) * 1.1 + MEGABYTE


def test_a_broken_push_goes_on_where_it_broke(
    net: Net, line: CuttingLine, tiny: Tiny, first: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads go the other way: what is cut is the registry's answers to them."""
    from envbuilder.publish import uploads

    monkeypatch.setattr(uploads, "CHUNK", 2 * MEGABYTE)
    line.cut_requests_after, line.cuts = MEGABYTE, 4
    again = publish_tiny(f"{line.host}", repository="broken/tiny")
    assert again.digest == tiny.digest
    assert line.cuts == 0
    assert MEGABYTE < line.sent < tiny.size + 4 * 2 * MEGABYTE + MEGABYTE


# --- killed ----------------------------------------------------------------------------------------------------------


def test_killed_amid_the_transfer_the_next_pull_goes_on(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 4 * MEGABYTE
    running = second.start("pull", tiny.at(line.host))
    wait_for(lambda: second.fetched() > 3 * MEGABYTE, running)
    kill(running)
    assert second.images() == []
    kept = second.kept()
    line.rate, before = None, line.passed
    whole(second, tiny.at(line.host))
    assert line.passed - before < (tiny.size - kept) * 1.1 + MEGABYTE


def wrapped_buildah(folder: Path, on_pull: str) -> str:
    """A PATH on which ``buildah pull`` does something else first; ``$real`` is the real one."""
    folder.mkdir()
    real = shutil.which("buildah")
    script = f'#!/bin/sh\nreal={real}\nif [ "$1" = pull ]; then\n{on_pull}\nfi\nexec $real "$@"\n'
    (folder / "buildah").write_text(script)
    (folder / "buildah").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_killed_amid_the_import_the_next_pull_finishes_it(second: Host, tmp_path: Path, tiny: Tiny, net: Net) -> None:
    """The importer is killed as soon as it has begun to write layers, and envbuilder with it: the power went."""
    path = second.environment["PATH"]
    begun = f"ls {second.storage}/graph/overlay/*/diff >/dev/null 2>&1"
    second.environment["PATH"] = wrapped_buildah(
        tmp_path / "bin", f'$real "$@" & pid=$!\nuntil {begun}; do sleep 0.02; done\nkill -9 $pid $PPID; exit 1'
    )
    running = second.start("pull", tiny.at(net.registry.host))
    running.communicate(timeout=120)
    assert running.returncode == -signal.SIGKILL
    second.environment["PATH"] = path
    assert second.images() == []
    assert list(second.cache.glob("scratch/*")), "it was amid the work"
    whole(second, tiny.at(net.registry.host))


def test_an_importer_that_dies_is_told_and_nothing_is_left(second: Host, tmp_path: Path, tiny: Tiny, net: Net) -> None:
    path = second.environment["PATH"]
    begun = f"ls {second.storage}/graph/overlay/*/diff >/dev/null 2>&1"
    second.environment["PATH"] = wrapped_buildah(
        tmp_path / "bin", f'$real "$@" & pid=$!\nuntil {begun}; do sleep 0.02; done\nkill -9 $pid; wait $pid; exit $?'
    )
    refused(second.envbuilder("pull", tiny.at(net.registry.host)), 6, "buildah was killed")
    assert second.left() == RESULTS
    second.environment["PATH"] = path
    whole(second, tiny.at(net.registry.host))


def test_interrupted_amid_the_transfer_it_says_so(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 4 * MEGABYTE
    running = second.start("pull", tiny.at(line.host))
    wait_for(lambda: second.fetched() > MEGABYTE, running)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert second.left() == RESULTS
    line.rate = None
    whole(second, tiny.at(line.host))


# --- a full disk -----------------------------------------------------------------------------------------------------


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
            os.posix_fallocate(stream.fileno(), filler.stat().st_size, min(free - leave, 16 * MEGABYTE))
    return filler


def test_a_cache_that_is_too_small_is_told_before_anything_comes(second: Host, tiny: Tiny, line: CuttingLine) -> None:
    with small_disk(second.cache, 100):
        refused(second.envbuilder("pull", tiny.at(line.host)), 6, "the disk of the cache has", "are needed")
        assert second.left() == RESULTS
        assert line.passed < MEGABYTE / 4


def test_a_cache_that_fills_up_amid_the_transfer(second: Host, tiny: Tiny, line: CuttingLine) -> None:
    with small_disk(second.cache, 400) as disk:
        line.rate = 4 * MEGABYTE
        running = second.start("pull", tiny.at(line.host))
        wait_for(lambda: second.fetched() > MEGABYTE, running)
        filler = fill(disk, MEGABYTE)
        _, errors = running.communicate(timeout=120)
        done = subprocess.CompletedProcess([], running.returncode, "", errors)
        refused(done, 6, "the disk is full", str(second.cache), "what has come is kept")
        assert second.left() == RESULTS
        filler.unlink()
        line.rate, before, kept = None, line.passed, second.kept()
        assert kept > MEGABYTE
        whole(second, tiny.at(line.host))
        assert line.passed - before < (tiny.size - kept) * 1.1 + MEGABYTE


def test_a_store_that_is_too_small_is_told_before_the_layers_come(
    second: Host, tiny: Tiny, line: CuttingLine, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 300) as disk:
        second.store_in(disk)
        refused(second.envbuilder("pull", tiny.at(line.host)), 6, "images are stored where", str(disk))
        assert second.left() == RESULTS
        assert line.passed < MEGABYTE / 4
        second.remove()


def test_a_store_that_fills_up_amid_the_import(second: Host, tiny: Tiny, tmp_path: Path, net: Net) -> None:
    with small_disk(tmp_path / "disk", 900) as disk:
        second.store_in(disk)
        path = second.environment["PATH"]
        room = 20 * MEGABYTE
        take = f"fallocate -l $(( $(df --output=avail -B1 {disk} | tail -1) - {room} )) {disk}/filler"
        second.environment["PATH"] = wrapped_buildah(tmp_path / "bin", take)
        refused(second.envbuilder("pull", tiny.at(net.registry.host)), 6, "the disk is full", str(disk))
        (disk / "filler").unlink()
        second.environment["PATH"] = path
        assert second.left() == RESULTS
        whole(second, tiny.at(net.registry.host))
        second.remove()


# --- a registry that lies --------------------------------------------------------------------------------------------

LIES: dict[str, tuple[lying.Lie, str]] = {
    "other bytes": (lying.other_bytes, "is not the file of the image's manifest"),
    "too long": (lying.too_long, "bytes there"),
    "too short": (lying.too_short, "bytes there"),
    "endless": (lying.endless, "is longer there than"),
    "a web page": (lying.web_page, "is a web page there"),
}


@pytest.mark.parametrize("which", ["layer", "configuration"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_blob_is_found_out(
    second: Host, liar: lying.LyingRegistry, tiny: Tiny, lie: str, which: str
) -> None:
    tell, says = LIES[lie]
    liar.lies[tiny.layers[0] if which == "layer" else tiny.config] = tell
    done = second.envbuilder("pull", tiny.at(liar.host))
    refused(done, 5, liar.host, says)
    assert "lock" not in done.stderr, "no lock has anything to do with it"
    assert second.left() == RESULTS
    liar.lies.clear()
    whole(second, tiny.at(liar.host))


@pytest.mark.parametrize(
    ("tell", "code", "says"),
    [
        (lying.other_bytes, 5, "serves other bytes"),
        (lying.web_page, 5, ""),
        (lying.endless, 5, ""),
    ],
)
def test_a_lie_about_the_manifest_is_found_out(
    second: Host, liar: lying.LyingRegistry, tiny: Tiny, tell: lying.Lie, code: int, says: str
) -> None:
    liar.lies[tiny.digest] = tell
    refused(second.envbuilder("pull", tiny.at(liar.host)), code, liar.host, says)
    assert second.left() == RESULTS
    liar.lies.clear()
    whole(second, tiny.at(liar.host))


def test_a_registry_that_always_ends_too_early_is_told(second: Host, liar: lying.LyingRegistry, tiny: Tiny) -> None:
    liar.lies[tiny.layers[0]] = lying.nothing_more
    refused(second.envbuilder("pull", tiny.at(liar.host)), 4, liar.host, "keeps breaking")
    assert second.left() == RESULTS


def test_of_two_mirrors_the_one_that_lies_is_not_taken_at_its_word(
    second: Host, liar: lying.LyingRegistry, tiny: Tiny, net: Net
) -> None:
    """A mirror with other bytes stops the pull: whoever set it must know."""
    (second.project / "envbuilder.toml").write_text(f'[mirrors.replace]\n"{net.registry.host}" = ["{liar.host}"]\n')
    liar.lies[tiny.layers[1]] = lying.other_bytes
    refused(second.envbuilder("pull", tiny.at(net.registry.host)), 5, liar.host, LIES["other bytes"][1])
    assert second.left() == RESULTS


# --- logins ----------------------------------------------------------------------------------------------------------


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
    whole(second, tiny.at(host))


def test_a_login_that_is_withdrawn_amid_the_transfer(
    second: Host, net: Net, guarded: tuple[str, Path], tiny: Tiny
) -> None:
    """The line breaks, and by the time it is taken up again the login is good no more."""
    _, users = guarded
    line = CuttingLine(net.first, PORT + 4, PORT + 3)
    try:
        store = log_in(second, line.host, PASSWORD)
        line.rate = 4 * MEGABYTE
        running = second.start("pull", tiny.at(line.host))
        wait_for(lambda: second.fetched() > 3 * MEGABYTE, running)
        write_users(users, "somebody-else")
        line.cut_after, line.cuts = 1, 10**6
        wait_for(lambda: line.cuts < 10**6, running)
        line.cuts, line.rate = 0, None
        _, errors = running.communicate(timeout=120)
        done = subprocess.CompletedProcess([], running.returncode, "", errors)
        refused(done, 4, f"refuses the login of '{USER}' that {store} holds", "withdrawn")
        assert second.left() == RESULTS
        kept = second.kept()
        assert kept > 3 * MEGABYTE
        write_users(users, USER)
        before = line.passed
        whole(second, tiny.at(line.host))
        assert line.passed - before < (tiny.size - kept) * 1.1 + MEGABYTE
    finally:
        write_users(users, USER)
        line.close()


# --- clocks ----------------------------------------------------------------------------------------------------------


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


# --- two at once -----------------------------------------------------------------------------------------------------


def test_two_that_pull_the_same_image_fetch_it_once(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 8 * MEGABYTE
    both = [second.start("pull", tiny.at(line.host), "--json") for _ in range(2)]
    said = []
    for running in both:
        out, errors = running.communicate(timeout=240)
        assert running.returncode == 0, errors
        said.append(json.loads(out))
    assert sorted(one["pulled"] for one in said) == [False, True]
    assert line.passed < tiny.size * 1.1
    assert second.left() == DONE


def test_when_the_first_of_two_is_killed_the_second_finishes(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 4 * MEGABYTE
    first = second.start("pull", tiny.at(line.host))
    wait_for(lambda: second.fetched() > 2 * MEGABYTE, first)
    other = second.start("pull", tiny.at(line.host), "--json")
    kill(first)
    line.rate = None
    out, errors = other.communicate(timeout=240)
    assert other.returncode == 0, errors
    assert json.loads(out)["pulled"] is True
    assert second.left() == DONE
    assert line.passed < tiny.size * 1.2 + MEGABYTE
