"""The compose file, read and run by Debian 13's docker-compose and Docker.

Stand-ins: the image (busybox, whose `python3` looks around and says what a file tells it to) and NVIDIA's hook, which
has no card to give.
"""

import json
import shutil
import subprocess
import tarfile

import pytest

from envbuilder.publish.deploy.job import Folder, Job, image_name
from envbuilder.publish.deploy.rendering import render
from envbuilder.publish.deploy.training import overrides
from envbuilder.stack.loading import load_stack
from tests.e2e.docker_daemon import docker_daemon, unpack

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


def text_of(path, *given, **places):
    stack, _ = load_stack("p40-debian")
    folders = {name: Folder(places.get(name, path)) for name in ("model", "data", "results")}
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


PYTHON = """#!/bin/sh
cd /results
case "$2" in
  envbuilder.smoke.cards)
    id -u > user; ls /sys/class/net > network; grep -E "CapEff|CapBnd|Seccomp:|NoNewPrivs" /proc/self/status > rights
    touch /model/x /data/x /x 2> refused; touch /tmp/x /home/trainer/x /dev/shm/x && df -m /dev/shm > writable
    exit "$(cat /data/verdict)" ;;
  *) echo "$*" > trained ;;
esac
"""
HOOK = "nvidia-container-runtime-hook"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    """A Docker daemon that takes itself for one with NVIDIA's toolkit, and the stand-in image in it."""
    folder = tmp_path_factory.mktemp("daemon")
    with pytest.MonkeyPatch.context() as patch:
        (folder / "no-card-to-give").mkdir()
        (folder / "no-card-to-give" / HOOK).write_text("#!/bin/sh\n")
        (folder / "no-card-to-give" / HOOK).chmod(0o755)
        patch.setenv("PATH", str(folder / "no-card-to-give"), prepend=":")
        with docker_daemon(folder, more=["docker-compose", "busybox-static"]):
            image = folder / "image"
            for name in ("bin", "usr/bin", "tmp", "home/trainer"):
                (image / name).mkdir(parents=True)
            (image / "tmp").chmod(0o1777)
            shutil.copy(next((folder / "root").glob("**/bin/busybox")), image / "bin/busybox")
            for name in ("sh", "id", "ls", "grep", "touch", "df", "cat", "echo"):
                (image / "bin" / name).symlink_to("busybox")
            (image / "usr/bin/python3").write_text(PYTHON)
            (image / "usr/bin/python3").chmod(0o755)
            with tarfile.open(folder / "image.tar", "w") as archive:
                archive.add(image, ".")
            path = ["--change", "ENV PATH=/usr/bin:/bin"]
            subprocess.run(["docker", "import", *path, folder / "image.tar", "stand-in:1"], check=True)
            yield


def test_it_trains_after_a_yes_alone_and_has_no_rights(daemon, tmp_path):
    places = {name: tmp_path / f"it's $HOME {name}" for name in ("model", "data", "results")}
    for place in places.values():
        place.mkdir()
    places["results"].chmod(0o777)
    text = text_of("", **{name: str(place) for name, place in places.items()})
    (tmp_path / "compose.yaml").write_text(text.replace(f'image: "{IMAGE.reference}"', "image: stand-in:1"))
    command = ["docker", "compose", "-f", tmp_path / "compose.yaml", "run", "--rm", "train"]
    found = {}
    for verdict in ("1", "3", "0"):
        (places["data"] / "verdict").write_text(verdict)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == (verdict == "0"), done.stderr
        found = {path.name: path.read_text() for path in places["results"].iterdir()}
        assert ("trained" in found) == (verdict == "0")
    assert found["trained"].startswith("-m envbuilder.smoke.ray_host --hosts 1 --cards 2")
    assert found["user"] == "1000\n"
    assert found["network"] == "lo\n"
    rights = dict(line.split(":\t") for line in found["rights"].splitlines())
    assert rights == {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2"}
    assert found["refused"].count("Read-only file system") == 3
    assert "8192" in found["writable"]
