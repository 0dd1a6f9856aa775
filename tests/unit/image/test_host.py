"""What the host must have: programs, an engine, space, and no leftovers of the dead."""

import subprocess
import sys

import pytest

from envbuilder.errors import HostError, InputError
from envbuilder.image import host_tools, scratch, space
from envbuilder.image.choose import choose_engine
from envbuilder.image.docker import Docker
from envbuilder.report.progress import Silent


@pytest.fixture(autouse=True)
def no_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))


def test_an_engine_that_is_not_there_says_what_to_install():
    with pytest.raises(HostError, match="buildah is not on this host") as caught:
        choose_engine("buildah")
    assert "apt-get install" in caught.value.cure
    with pytest.raises(HostError, match="no Docker daemon answers") as caught:
        choose_engine("docker")
    assert "--engine buildah" in caught.value.cure
    with pytest.raises(HostError, match="no engine on this host") as caught:
        choose_engine("auto")
    assert "docker: " in caught.value.detail
    assert "buildah: " in caught.value.detail
    with pytest.raises(InputError, match="'podman'"):
        choose_engine("podman")


def test_without_root_the_one_command_is_said(monkeypatch):
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(HostError, match="missing on this host: buildah, runc, mmdebstrap") as caught:
        host_tools.ensure_programs(Silent())
    assert caught.value.cure.endswith("apt-get install --yes --no-install-recommends buildah runc mmdebstrap")


class OldDaemon(Docker):
    """A stand-in that only tells a version."""

    def __init__(self, version):
        self._version = version

    def _daemon_version(self):
        return self._version


def test_a_daemon_that_is_too_old_and_a_client_without_buildx():
    with pytest.raises(HostError, match=r"the Docker daemon is 20\.10\.24\+dfsg1") as caught:
        OldDaemon("20.10.24+dfsg1").check_can_build()
    assert "Update Docker to 26" in caught.value.cure
    with pytest.raises(HostError, match="Docker has no buildx here") as caught:
        OldDaemon("26.1.5").check_can_build()
    assert "docker-buildx" in caught.value.cure


def test_space_is_asked_of_the_disk_the_folder_will_be_on(tmp_path):
    space.check_build_space(tmp_path / "not" / "there" / "yet", 0, "overlay")
    with pytest.raises(HostError, match="are free; this one needs"):
        space.check_build_space(tmp_path / "not" / "there" / "yet", 1 << 60, "overlay")


def test_a_store_that_copies_needs_more_and_the_cure_names_another(tmp_path):
    layers = [3, 0, 2]
    assert (space.stored(layers, "overlay"), space.peak(layers, "overlay")) == (5, 13)
    assert (space.stored(layers, "vfs"), space.peak(layers, "vfs")) == (3 + 3 + 5, 25)
    with pytest.raises(HostError) as caught:
        space.check_build_space(tmp_path, 1 << 60, "vfs")
    assert 'driver = "overlay"' in caught.value.cure


def test_a_folder_in_use_is_nobodys_to_remove_and_a_dead_ones_is():
    with scratch.scratch() as alive:
        code = (
            "import os; from envbuilder.image.scratch import scratch\n"
            "with scratch() as folder: print(folder, flush=True); os._exit(9)"
        )
        died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout.strip()
        assert [str(folder) for folder in scratch.abandoned()] == [died]
        for folder in scratch.abandoned():
            scratch.discard(folder)
        assert alive.is_dir()
        assert scratch.abandoned() == []
    assert list(scratch.scratch_root().iterdir()) == []
