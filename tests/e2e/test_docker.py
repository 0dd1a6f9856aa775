"""The Docker engine with a real daemon: the small stack twice, runs, and every way it refuses."""

import os
import subprocess

import docker
import pytest

from envbuilder.errors import BuildError, HostError
from envbuilder.image.building import build_stack
from envbuilder.image.choose import choose_engine
from envbuilder.image.context import same_everywhere
from envbuilder.image.docker import Docker
from envbuilder.image.engine import BuildRequest, RunRequest
from envbuilder.report.progress import Silent
from tests.e2e.docker_daemon import docker_daemon
from tests.engine.conftest import programs, small  # noqa: F401

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("docker")]


@pytest.fixture(scope="module")
def engine(programs, tmp_path_factory):  # noqa: F811
    with docker_daemon(tmp_path_factory.mktemp("docker")):
        chosen = choose_engine("auto")
        assert isinstance(chosen, Docker), "a daemon that answers comes first"
        yield chosen


@pytest.fixture(scope="module")
def built(engine, small):  # noqa: F811
    return build_stack(*small, engine, Silent())


def test_nothing_changed_nothing_built(built, engine, small):  # noqa: F811
    again = build_stack(*small, engine, Silent())
    assert not again.anew
    assert again.image.digest == built.image.digest


def test_built_three_times_from_nothing_the_digest_is_one(built, engine, small):  # noqa: F811
    digests = {built.image.digest}
    for _ in range(2):
        # The daemon forgets the files as well, so they come once more, with other times on its disk.
        subprocess.run(["docker", "buildx", "prune", "--all", "--force"], check=True, capture_output=True)
        again = build_stack(*small, engine, Silent(), cache=False)
        assert again.anew
        digests.add(again.image.digest)
    assert len(digests) == 1


def test_a_file_of_the_same_size_and_time_is_not_that_of_the_build_before(engine, tmp_path):
    (tmp_path / "Dockerfile").write_text("FROM scratch AS it\nCOPY x /x\n")
    layers = set()
    for text in ("one", "two"):
        context = tmp_path / text / "context"
        context.mkdir(parents=True)
        (context / "x").write_text(text)
        same_everywhere(context, 1757289600)
        request = BuildRequest(tmp_path / "Dockerfile", context, "it", "localhost/test/x:1", 1757289600)
        layers |= {layer.digest for layer in engine.build(request, Silent()).layers}
    assert len(layers) == 2


def test_a_run_gives_lines_errors_and_exit_code(built, engine):
    script = "import idna, sys; print(idna.__version__); print('two', file=sys.stderr); sys.exit(7)"
    run = engine.run(RunRequest(built.image.reference, ("python", "-c", script)))
    assert [*run] == ["3.10"]
    assert run.wait() == 7
    assert run.errors() == "two"
    assert docker.from_env().containers.list(all=True) == []


def test_what_a_run_writes_belongs_to_the_folders_owner(built, engine, tmp_path):
    tmp_path.chmod(0o755)
    for owner, expected in ((0, 1000), (1234, 1234)):
        folder = tmp_path / f"of-{owner}"
        folder.mkdir(mode=0o700)
        os.chown(folder, owner, owner)
        script = "id -u; echo y > /out/made"
        run = engine.run(RunRequest(built.image.reference, ("sh", "-c", script), writable={folder: "/out"}))
        assert (list(run), run.wait()) == ([str(expected)], 0), run.errors()
        assert (folder / "made").stat().st_uid == expected


def test_a_run_that_is_stopped_is_gone(built, engine):
    run = engine.run(RunRequest(built.image.reference, ("sleep", "300")))
    run.stop()
    assert docker.from_env().containers.list(all=True) == []


def test_no_gpu_no_image_no_program(built, engine):
    for request, said in (
        (RunRequest(built.image.reference, ("true",), gpu="0"), "Docker cannot give a container the GPU"),
        (RunRequest("localhost/none:1", ("true",)), "there is no image localhost/none:1"),
        (RunRequest(built.image.reference, ("nosuch",)), "the container did not start"),
    ):
        with pytest.raises(HostError, match=said) as caught:
            engine.run(request)
        assert caught.value.cure
        assert docker.from_env().containers.list(all=True) == []


def test_a_failed_step_is_named(engine, tmp_path):
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch AS it\nCOPY Dockerfile /x\nRUN : 'weave the cloth @ 1' && false\n"
    )
    request = BuildRequest(tmp_path / "Dockerfile", tmp_path, "it", "localhost/test/broken:1", 1757289600)
    with pytest.raises(BuildError, match="the build failed at: weave the cloth"):
        engine.build(request, Silent())
    assert engine.image("localhost/test/broken:1") is None
