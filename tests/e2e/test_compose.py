"""The compose file against the Compose Specification, by the program that defines it (Debian 13's docker-compose)."""

import json
import subprocess

import pytest

from envbuilder.publish.deploy.job import Folder, Job, image_name
from envbuilder.publish.deploy.rendering import render
from envbuilder.publish.deploy.training import overrides
from envbuilder.stack.loading import load_stack
from tests.e2e.docker_daemon import unpack

pytestmark = pytest.mark.e2e
IMAGE = image_name("registry.lab:5000/team/p40@sha256:" + "ab" * 32)
NASTY = "/a 'b' \"c\" ${HOME} $(x) `y` \\ # - : {{ z }} é\u0085😀"


@pytest.fixture(scope="module")
def compose(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compose")
    program = unpack(folder, ["docker-compose"]) / "usr/libexec/docker/cli-plugins/docker-compose"

    def run(text):
        (folder / "compose.yaml").write_text(text)
        return subprocess.run(
            [program, "-f", folder / "compose.yaml", "config", "--format", "json"],
            capture_output=True, text=True, check=False, env={"HOME": str(folder), "x": "expanded"},
        )  # fmt: skip

    return run


def text_of(path, *given):
    stack, _ = load_stack("p40-debian")
    folders = {name: Folder(path) for name in ("model", "data", "results")}
    return render("compose", Job(stack.name, IMAGE, overrides=overrides(stack, 1, 2, given), gpus=2, **folders)).text


def test_compose_takes_the_file_and_reads_what_was_meant(compose):
    done = compose(text_of(NASTY, f"trainer.experiment_name={NASTY}"))
    assert done.returncode == 0, done.stderr
    read = json.loads(done.stdout)["services"]
    train = read["train"]
    assert train["depends_on"]["verify"]["condition"] == "service_completed_successfully"
    assert train["volumes"][0]["source"].replace("$$", "$") == NASTY
    assert train["command"][-1].replace("$$", "$") == f"trainer.experiment_name={NASTY}"
    for service in read.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["read_only"]
        assert service["user"] == "1000:1000"
        assert service["network_mode"] == "none"
        assert service["shm_size"] == str(8 * 2**30)
        (device,) = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"capabilities": ["gpu"], "driver": "nvidia", "count": 2}


def test_compose_would_find_a_key_that_is_not_there(compose):
    done = compose(text_of("/a").replace("read_only: true\n  network", "readonly: true\n  network"))
    assert done.returncode != 0
    assert "readonly" in done.stderr
