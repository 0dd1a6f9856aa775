"""An image from one host to another, with a real registry (with a login), real stores and a real sshd."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from envbuilder.errors import HostError, IntegrityError, SourceError
from envbuilder.image.buildah import Buildah
from envbuilder.image.building import build_stack
from envbuilder.image.engine import RunRequest
from envbuilder.lock.mirrors import Mirrors
from envbuilder.publish import installing
from envbuilder.publish.archive import load, save
from envbuilder.publish.export import export
from envbuilder.publish.pull import pull
from envbuilder.publish.push import push
from envbuilder.publish.remote import Remote
from envbuilder.publish.ssh import push_over_ssh
from envbuilder.report.progress import Silent
from tests.engine import hosts

pytestmark = pytest.mark.xdist_group("small-stack")
NAME = "localhost/envbuilder/small:runtime"


@dataclass
class Place:
    """A registry with a login, and the host's own store of logins."""

    host: str
    blobs: Path
    logins: Path

    def log_in(self, host, password=hosts.PASSWORD):
        entry = {"auth": base64.b64encode(f"{hosts.USER}:{password}".encode()).decode()}
        self.logins.mkdir(exist_ok=True)
        (self.logins / "config.json").write_text(json.dumps({"auths": {host: entry}}))

    def blob(self, digest):
        return self.blobs / digest[7:9] / digest[7:] / "data"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("registry")
    with hosts.registry(folder) as (host, blobs), pytest.MonkeyPatch.context() as patch:
        found = Place(host, blobs, folder / "logins")
        found.log_in(host)
        patch.setenv("DOCKER_CONFIG", str(found.logins))
        yield found


@pytest.fixture(scope="module")
def image(store, small):
    return build_stack(*small, Buildah(), Silent()).image


@pytest.fixture(scope="module")
def exported(image, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ENVBUILDER_CACHE", str(tmp_path_factory.mktemp("cache")))
        return export(Buildah(), image.reference, Silent())


@pytest.fixture(scope="module")
def pushed(exported, place):
    return push(exported, Remote.open(f"{place.host}/team/small:1"), Silent())


@pytest.fixture
def other_host(tmp_path, monkeypatch):
    """An engine with an empty store, and an empty cache."""
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage(tmp_path, tmp_path)))
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other cache"))
    yield Buildah()
    subprocess.run(["buildah", "rmi", "--all", "--force"], check=False, capture_output=True)
    subprocess.run(["umount", str(tmp_path / "graph" / "overlay")], check=False, capture_output=True)


def storage(folder, disk):
    conf = folder / "storage.conf"
    conf.write_text(f'[storage]\ndriver = "overlay"\ngraphroot = "{disk}/graph"\nrunroot = "{disk}/run"\n')
    return conf


def names(engine):
    listed = json.loads(subprocess.run(["buildah", "images", "--json"], capture_output=True, check=True).stdout or "[]")
    return [name for row in listed or [] for name in row["names"] or ["<none>"]]


def test_what_leaves_the_store_is_what_was_put_in(exported, image):
    config = json.loads(exported.layout.path(exported.config.digest).read_bytes())
    assert exported.config.digest == Buildah().identity(image, Silent())
    assert config["rootfs"]["diff_ids"] == [layer.digest for layer in image.layers]
    # A name or a digest of the store that built it says nothing elsewhere.
    assert all("comment" not in step for step in config["history"])
    again = export(Buildah(), image.reference, Silent())
    assert again.digest == exported.digest


def test_an_image_is_pushed_pulled_and_runs_there(exported, pushed, place, other_host, image):
    assert pushed.moved == sum(layer.size for layer in exported.layers) + exported.config.size
    pulled = pull(pushed.pinned, other_host, Mirrors(), Silent())
    assert (pulled.name, pulled.digest, pulled.image.id) == (NAME, exported.digest, exported.config.digest)
    assert pulled.moved == pushed.moved
    assert names(other_host) == [NAME]
    run = other_host.run(RunRequest(NAME, ("python", "-c", "import yaml, envbuilder.errors; print('there')")))
    assert (list(run), run.wait()) == (["there"], 0)
    again = pull(pushed.pinned, other_host, Mirrors(), Silent())
    assert (again.anew, again.moved) == (False, 0)
    repeated = push(exported, Remote.open(f"{place.host}/team/small:1"), Silent())
    assert (repeated.moved, repeated.digest) == (0, exported.digest)
    # As it was pulled it travels on.
    onward = export(other_host, NAME, Silent())
    assert (onward.digest, onward.anew) == (exported.digest, False)


def test_a_push_over_a_line_that_breaks_goes_on(exported, place, monkeypatch):
    from envbuilder.fetch import download
    from envbuilder.publish import uploads

    monkeypatch.setattr(uploads, "CHUNK", 4 << 20)
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0.05)
    # The second connection of each kind breaks amid a chunk.
    with hosts.flaky(place.host, [None, 6_000_000, 9_000_000, 6_500_000, 10_000_000]) as line:
        place.log_in(line)
        done = push(exported, Remote.open(f"{line}/team/broken:1"), Silent())
    place.log_in(place.host)
    assert done.digest == exported.digest
    assert all(place.blob(layer.digest).stat().st_size == layer.size for layer in exported.layers)


def test_a_push_that_was_stopped_goes_on_in_the_next_run(place, monkeypatch):
    from envbuilder.fetch.download import Stopped
    from envbuilder.publish import uploads
    from envbuilder.publish.layout import describe

    monkeypatch.setattr(uploads, "CHUNK", 1 << 20)
    body = os.urandom(8 << 20)
    remote, blob, counts = Remote.open(f"{place.host}/team/stopped:1"), describe(body, "x"), []
    with pytest.raises(Stopped):
        remote.send(body, blob, counts.append, lambda: sum(counts) > 4 << 20)
    counts.clear()
    remote.send(body, blob, counts.append)
    assert counts[0] >= 4 << 20, "the registry had kept it"
    assert sum(counts) == blob.size
    assert place.blob(blob.digest).read_bytes() == body


def test_a_wrong_password_names_the_command(exported, place):
    place.log_in(place.host, "an old one")
    try:
        with pytest.raises(SourceError, match="refuses the login of 'team'") as caught:
            push(exported, Remote.open(f"{place.host}/team/small:2"), Silent())
        assert f"docker login {place.host}" in caught.value.cure
    finally:
        place.log_in(place.host)


def test_a_tampered_blob_is_refused_and_nothing_is_installed(exported, pushed, place, other_host):
    largest = max(exported.layers, key=lambda layer: layer.size)
    path = place.blob(largest.digest)
    whole = path.read_bytes()
    changed = bytearray(whole)
    changed[len(whole) // 2] ^= 1
    path.write_bytes(bytes(changed))
    try:
        with pytest.raises(IntegrityError, match="is not the file of"):
            pull(pushed.pinned, other_host, Mirrors(), Silent())
        assert names(other_host) == []
    finally:
        path.write_bytes(whole)
    assert pull(pushed.pinned, other_host, Mirrors(), Silent()).anew


def test_an_archive_is_taken_by_buildahs_own_command_and_by_load(exported, other_host, image, tmp_path):
    first, second = (save(exported, tmp_path / name, Silent()) for name in ("a.tar", "b.tar"))
    assert first.sha256 == second.sha256
    subprocess.run(["buildah", "pull", "--quiet", f"docker-archive:{first.path}"], check=True, capture_output=True)
    assert other_host.image(NAME).id == exported.config.digest
    subprocess.run(["buildah", "rmi", NAME], check=True, capture_output=True)
    loaded = load(first.path, other_host, Silent())
    assert (loaded.name, loaded.image.id, loaded.anew) == (NAME, exported.config.digest, True)
    assert loaded.digest == exported.digest
    assert not load(first.path, other_host, Silent()).anew
    # Packed again on this host, it is what was published elsewhere.
    assert export(other_host, NAME, Silent()).digest == exported.digest


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_disk_that_is_full_amid_the_import_leaves_no_image(pushed, other_host, small_disk, tmp_path, monkeypatch):
    storage(tmp_path, small_disk)
    engine = Buildah()
    with pytest.raises(HostError, match="this one needs"):
        pull(pushed.pinned, engine, Mirrors(), Silent())
    monkeypatch.setattr(installing.space, "check_build_space", lambda storage, needed, driver: None)
    with pytest.raises(HostError, match="the disk is full"):
        pull(pushed.pinned, engine, Mirrors(), Silent())
    assert names(engine) == []


def test_an_archive_that_does_not_fit_is_not_half_written(exported, small_disk):
    with pytest.raises(HostError, match="nothing of it is left"):
        save(exported, small_disk / "a.tar", Silent())
    assert list(small_disk.iterdir()) == []


def _listens():
    """What is started in the background of a shell does not hear Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_amid_a_pull_keeps_what_came_and_installs_nothing(pushed, other_host, tmp_path):
    command = [sys.executable, "-m", "envbuilder", "pull", pushed.pinned, "--engine", "buildah", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=_listens)
    taking = next(line for line in process.stderr if line.startswith("taking "))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert taking
    assert process.returncode == 130
    assert names(other_host) == []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["bytes_moved"] == 0
    assert names(other_host) == [NAME]


def test_two_processes_pull_one_image_once(pushed, other_host):
    command = [sys.executable, "-m", "envbuilder", "pull", pushed.pinned, "--engine", "buildah", "--json"]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    results = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    assert sorted(result["pulled"] for result in results) == [False, True]
    assert names(other_host) == [NAME]


def test_over_ssh_to_a_host_that_has_only_podman(exported, image, tmp_path_factory, monkeypatch):
    with hosts.ssh_host(tmp_path_factory.mktemp("ssh")) as (programs, own):
        monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
        sent = push_over_ssh(exported, "ssh://p40-host", Silent())
        assert (sent.name, sent.moved > 0, sent.engine.startswith("podman 4")) == (NAME, True, True)
        with monkeypatch.context() as there:
            for key, value in own.items():
                there.setenv(key, value)
            assert Buildah().image(NAME).id == exported.config.digest
        began = time.monotonic()
        assert push_over_ssh(exported, "ssh://root@p40-host", Silent()).moved == 0
        assert time.monotonic() - began < 30
        with pytest.raises(HostError, match="does not get to") as caught:
            push_over_ssh(exported, "ssh://p40-host:1", Silent())
        assert "ssh -p 1 p40-host true" in caught.value.cure
