"""The engine by itself: what it tells, how it ends, that nothing is left behind. A base of one static file suffices."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from envbuilder.errors import BuildError, HostError
from envbuilder.image import scratch
from envbuilder.image.engine import BuildRequest, RunRequest
from envbuilder.report.progress import Silent

pytestmark = pytest.mark.xdist_group("buildah")
EPOCH = 1757289600


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def shell(store, tmp_path_factory):
    """A folder with a static shell: the smallest base in which a step can run."""
    folder = tmp_path_factory.mktemp("shell")
    deb = subprocess.run(
        ["apt-get", "download", "busybox-static"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert deb.returncode == 0, deb.stderr
    subprocess.run(["dpkg-deb", "-x", str(next(folder.glob("*.deb"))), str(folder / "root")], check=True)
    busybox = next(p for p in (folder / "root").rglob("bin/busybox"))
    (folder / "context").mkdir()
    shutil.copyfile(busybox, folder / "context" / "busybox")
    (folder / "context" / "busybox").chmod(0o755)
    return folder / "context"


def request(tmp_path, shell, *steps, tag="localhost/test/engine:1", **more):
    """A build of ``steps`` on the shell."""
    dockerfile = tmp_path / f"Dockerfile.{tag.rpartition(':')[2]}"
    base = ["FROM scratch AS it", "COPY busybox /bin/busybox", "COPY busybox /bin/sh"]
    dockerfile.write_text("\n".join([*base, *steps]) + "\n")
    return BuildRequest(dockerfile, shell, "it", tag, EPOCH, **more)


def left_behind(store):
    """Containers, mounts below the storage and running containers."""
    containers = subprocess.run(
        ["buildah", "containers", "--all", "-q"], capture_output=True, text=True, check=True
    ).stdout
    mounts = [
        line for line in Path("/proc/mounts").read_text().splitlines() if f"{store}/graph" in line and "/merged" in line
    ]
    return containers.split(), mounts


def test_a_failed_step_is_named_with_its_last_lines(tmp_path, shell, store, buildah):
    wanted = request(tmp_path, shell, "RUN : 'weave the cloth @ 123' && echo the loom is broken && false")
    with pytest.raises(BuildError, match="the build failed at: weave the cloth") as caught:
        buildah.build(wanted, Silent())
    assert "the loom is broken" in caught.value.detail
    assert left_behind(store) == ([], [])
    assert buildah.image(wanted.tag) is None


def test_a_full_disk_has_a_cure(tmp_path, shell, buildah):
    # /dev/shm of a step holds 64 MB.
    steps = "RUN : 'fill' && busybox dd if=/dev/zero of=/dev/shm/x bs=1M count=90"
    with pytest.raises(BuildError) as caught:
        buildah.build(request(tmp_path, shell, steps), Silent())
    assert caught.value.cure.startswith("The disk is full")


def test_a_secret_is_seen_by_the_step_and_in_no_layer(tmp_path, shell, buildah, store):
    secret = tmp_path / "ca.pem"
    secret.write_text("a certificate nobody shall find\n")
    step = "RUN --mount=type=secret,id=ca busybox wc -c < /run/secrets/ca > /size"
    image = buildah.build(request(tmp_path, shell, step, secrets={"ca": secret}), Silent())
    run = buildah.run(RunRequest(image.reference, ("/bin/sh", "-c", "busybox cat /size")))
    assert [list(run), run.wait()] == [["32"], 0]
    found = subprocess.run(
        ["grep", "-rl", "nobody shall find", str(store / "graph")], capture_output=True, text=True, check=False
    )
    assert found.stdout == ""


def test_an_optional_secret_may_be_absent(tmp_path, shell, buildah):
    step = "RUN --mount=type=secret,id=ca busybox test ! -e /run/secrets/ca"
    assert buildah.build(request(tmp_path, shell, step), Silent())


def test_a_build_has_no_network_unless_it_asks(tmp_path, shell, buildah):
    step = "RUN busybox test $(busybox wc -l < /proc/net/dev) = 3"
    assert buildah.build(request(tmp_path, shell, step), Silent())


def test_a_run_gives_lines_errors_and_exit_code_as_they_are(tmp_path, shell, buildah, store):
    image = buildah.build(request(tmp_path, shell, "USER 1000"), Silent())
    run = buildah.run(
        RunRequest(
            image.reference, ("/bin/sh", "-c", "echo one; echo two >&2; echo $WORD; exit 7"), env={"WORD": "three"}
        )
    )
    assert list(run) == ["one", "three"]
    assert run.wait() == 7
    assert run.errors() == "two"
    run.stop()
    assert left_behind(store) == ([], [])


def test_a_run_that_is_stopped_is_gone(tmp_path, shell, buildah, store):
    image = buildah.build(request(tmp_path, shell), Silent())
    run = buildah.run(RunRequest(image.reference, ("/bin/sh", "-c", "echo up; busybox sleep 300")))
    assert next(iter(run)) == "up"
    run.stop()
    assert left_behind(store) == ([], [])
    assert list(scratch.scratch_root().iterdir()) == []


def test_a_gpu_without_the_toolkit_and_an_image_that_is_not_there(buildah, monkeypatch):
    with pytest.raises(HostError, match="no container can be made from localhost/none:1"):
        buildah.run(RunRequest("localhost/none:1", ("true",)))
    if shutil.which("nvidia-container-runtime") is None:
        with pytest.raises(HostError, match="cannot see the GPU") as caught:
            buildah.run(RunRequest("localhost/none:1", ("true",), gpu="0"))
        assert "nvidia-container-toolkit" in caught.value.cure


def test_two_builds_at_once_do_not_disturb_each_other(tmp_path, shell, buildah, store):
    steps = ["RUN busybox sleep 1; echo a > /a", "RUN busybox sleep 1; echo b > /b"]
    images, faults = [], []

    def build(number):
        try:
            images.append(buildah.build(request(tmp_path, shell, *steps, tag=f"localhost/test/two:{number}"), Silent()))
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=build, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert images[0].layers == images[1].layers
    assert len({image.digest for image in images}) == 1
    assert left_behind(store) == ([], [])


def test_layers_that_somebody_made_without_our_time_are_not_taken(tmp_path, shell, buildah, store):
    """The same steps by hand, without --timestamp: buildah would take them from the store, and give another digest."""
    wanted = request(tmp_path, shell, "RUN echo one > /one", "RUN echo two > /two", tag="localhost/test/ours:1")
    command = ["buildah", "build", "--layers", "--identity-label=false", "--isolation", "oci", "--runtime", "runc"]
    command += ["--network", "none", "--http-proxy=false", "--tag", "localhost/test/theirs:1"]
    by_hand = [*command, "--file", str(wanted.dockerfile), str(wanted.context)]
    empty = ["buildah", "rmi", "--all", "--force"]  # a step's image that has a name here would stand in the history
    subprocess.run(empty, check=True, capture_output=True)
    clean = buildah.build(wanted, Silent())
    subprocess.run(empty, check=True, capture_output=True)
    subprocess.run(by_hand, check=True, capture_output=True)
    theirs = buildah.image("localhost/test/theirs:1")
    ours = buildah.build(wanted, Silent())
    assert ours.digest == clean.digest != theirs.digest
    assert buildah.build(wanted, Silent()).digest == clean.digest
    assert buildah.image("localhost/test/theirs:1") == theirs, "nobody else's image was touched"


def test_removing_an_image_takes_those_of_its_steps(tmp_path, shell, buildah, store):
    subprocess.run(["buildah", "rmi", "--all", "--force"], check=True, capture_output=True)
    kept = buildah.build(request(tmp_path, shell, "RUN echo 1 > /1", tag="localhost/test/kept:1"), Silent())
    before = listed()
    other = request(tmp_path, shell, "RUN echo 1 > /1", "RUN echo 2 > /2", "USER 7", tag="localhost/test/gone:2")
    buildah.build(other, Silent())
    assert len(listed()) == len(before) + 2
    buildah.remove(other.tag)
    buildah.remove(other.tag)
    assert buildah.image(other.tag) is None
    assert listed() == before
    assert buildah.image(kept.reference) == kept


def listed():
    """The ids of all images, those of steps included."""
    found = subprocess.run(["buildah", "images", "--all", "--quiet"], capture_output=True, text=True, check=True)
    return sorted(found.stdout.split())


# A build of its own process, through the command line's own handling of signals.
_CHILD = textwrap.dedent("""
    import sys
    from pathlib import Path
    import click
    from envbuilder import cli
    from envbuilder.image.buildah import Buildah
    from envbuilder.image.engine import BuildRequest
    from envbuilder.report.progress import Silent

    class Said(Silent):
        def item(self, text):
            print(text, flush=True)

    @click.command("build")
    def build():
        request = BuildRequest(Path(sys.argv[1]), Path(sys.argv[2]), "it", "localhost/test/ended:1", 1757289600)
        Buildah().build(request, Said())

    cli.group.add_command(build)
    cli.LazyGroup.get_command = lambda self, ctx, name: build
    sys.exit(cli.run(["build"]))
""")


@pytest.fixture
def building(tmp_path, shell):
    """Start a build that would take minutes, and wait until its last step runs."""
    wanted = request(tmp_path, shell, "RUN echo done > /first", "RUN echo it runs && busybox sleep 300")

    def start():
        command = [sys.executable, "-c", _CHILD, str(wanted.dockerfile), str(wanted.context)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in process.stdout:
            if line.strip() == "it runs":
                return process
        raise AssertionError(process.communicate()[1])

    return start


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_build_leaves_nothing(building, store, kind):
    process = building()
    process.send_signal(kind)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert left_behind(store) == ([], [])
    assert list(scratch.scratch_root().iterdir()) == []


def test_what_a_killed_build_left_is_removed_by_the_next(building, store, buildah, tmp_path, shell):
    process = building()
    process.kill()
    process.communicate()
    time.sleep(0.5)
    assert left_behind(store)[0], "the test is of no use if nothing was left"
    image = buildah.build(request(tmp_path, shell, "RUN echo done > /first", tag="localhost/test/next:1"), Silent())
    assert image.layers
    assert left_behind(store) == ([], [])
    assert list(scratch.scratch_root().iterdir()) == []


def test_what_a_run_writes_belongs_to_the_folders_owner(tmp_path, shell, buildah):
    """A folder of root's is given to the image's user; in another's folder the command runs as that other."""
    image = buildah.build(request(tmp_path, shell, "USER 1000"), Silent())
    read = tmp_path / "read"
    read.write_text("x")
    tmp_path.chmod(0o755)
    for owner, expected in ((0, 1000), (1234, 1234)):
        folder = tmp_path / f"of-{owner}"
        folder.mkdir(mode=0o700)
        os.chown(folder, owner, owner)
        script = "busybox id -u; echo y > /out/made; echo z > /read 2>/dev/null || echo refused"
        run = buildah.run(
            RunRequest(image.reference, ("/bin/sh", "-c", script), mounts={read: "/read"}, writable={folder: "/out"})
        )
        assert list(run) == [str(expected), "refused"]
        assert run.wait() == 0
        assert (folder / "made").stat().st_uid == folder.stat().st_uid == expected
    assert read.read_text() == "x"
