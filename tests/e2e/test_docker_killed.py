"""A Docker daemon that is killed amid a pull: it is told, and after the daemon's return the next pull finishes."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import Net
from tests.e2e.docker_daemon import docker_daemon
from tests.e2e.hosts import Host, refused, until_said
from tests.e2e.published import TINY, Tiny, publish_tiny

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tiny(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """The image in the registry, large enough that a daemon has something to do."""
    with net.on_first(tmp_path_factory.mktemp("first")):
        return publish_tiny(net.registry.host, megabytes=48)


def images() -> list[str]:
    command = ["docker", "images", "--all", "--format", "{{.Repository}}:{{.Tag}}"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, listed.stderr
    return listed.stdout.split()


def test_a_daemon_that_is_killed_amid_the_pull(second: Host, tiny: Tiny, net: Net, tmp_path: Path) -> None:
    folder = tmp_path / "docker"
    folder.mkdir()
    with docker_daemon(folder):
        for name in ("DOCKER_HOST", "DOCKER_CONFIG", "PATH"):
            second.environment[name] = os.environ[name]
        pull = ("pull", tiny.at(net.registry.host), "--engine", "docker")
        running = second.start(*pull)
        said = until_said(running, "taking ")
        time.sleep(0.4)
        killed = int((folder / "pid").read_text())
        os.kill(killed, signal.SIGKILL)
        # While it is a zombie of ours, the next daemon takes it for running.
        os.waitpid(killed, 0)
        _, errors = running.communicate(timeout=120)
        done = subprocess.CompletedProcess([], running.returncode, "", said + errors)
        assert "Traceback" not in done.stderr, done.stderr
        refused(done, 6, "docker went away while it took the image", "what was fetched is kept")
        refused(second.envbuilder(*pull), 6, "docker")

        again = subprocess.Popen(
            ["dockerd", "--config-file", str(folder / "daemon.json")],
            stdout=(folder / "log again").open("w"),
            stderr=subprocess.STDOUT,
        )
        try:
            answers = ["docker", "version", "--format", "{{.Server.Version}}"]
            for _ in range(120):
                if subprocess.run(answers, capture_output=True, check=False).returncode == 0:
                    break
                assert again.poll() is None, (folder / "log again").read_text()[-2000:]
                time.sleep(0.5)
            assert TINY not in images()
            finished = second.envbuilder(*pull, "--json")
            assert finished.returncode == 0, finished.stderr
            assert '"bytes_moved": 0' in finished.stdout, "nothing is fetched twice"
            assert TINY.removeprefix("localhost/") in " ".join(images())
        finally:
            again.terminate()
            again.wait(timeout=60)
