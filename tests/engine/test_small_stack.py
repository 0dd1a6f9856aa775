"""The road from a lock to an image, with a real base, real wheels and a real buildah."""

import json
import shutil
import subprocess
from dataclasses import dataclass, field

import pytest

from envbuilder.errors import HostError, IntegrityError
from envbuilder.image.building import build_stack
from envbuilder.image.engine import RunRequest
from envbuilder.image.record import build_record
from envbuilder.publish.archive import save
from envbuilder.publish.export import export
from envbuilder.publish.sbom.checking import check
from envbuilder.publish.sbom.cyclonedx import cyclonedx_text
from envbuilder.publish.sbom.inventory import contents_of
from envbuilder.publish.sbom.spdx import spdx_text
from envbuilder.report.model import Verdict
from envbuilder.report.progress import Silent

pytestmark = pytest.mark.xdist_group("small-stack")


@dataclass
class Heard(Silent):
    """Keeps the stages it is told."""

    stages: list[str] = field(default_factory=list)

    def stage(self, title):
        self.stages.append(title)


@pytest.fixture(scope="module")
def built(store, small):
    from envbuilder.image.buildah import Buildah

    heard = Heard()
    return build_stack(*small, Buildah(), heard), heard


def say(buildah, image, script):
    run = buildah.run(RunRequest(image, ("sh", "-c", script)))
    lines = list(run)
    assert run.wait() == 0, run.errors()
    return lines


def test_each_layer_is_told_as_it_is_built(built):
    image, heard = built
    assert image.anew
    wanted = ["virtual environment, 1 package", "libraries, 4 packages"]
    assert [stage for stage in heard.stages if stage in wanted] == wanted
    assert any(stage.startswith("base system: ") for stage in heard.stages) or "Debian base" in heard.stages


def test_nothing_changed_nothing_built(built, small, buildah):
    heard = Heard()
    again = build_stack(*small, buildah, heard)
    assert not again.anew
    assert again.image.id == built[0].image.id
    # Tests in another process build an image of this name too, in a store of their own but with the same cache.
    assert [stage for stage in heard.stages if not stage.startswith("another build of ")] == []


def test_the_same_lock_gives_the_same_digest(built, small, buildah, other_cache):
    """Everything anew: the base from its packages, every layer, in another folder."""
    other_cache(small[2])
    heard = Heard()
    again = build_stack(*small, buildah, heard, cache=False)
    assert any(stage.startswith("base system: ") for stage in heard.stages), "the base was made again"
    assert again.identity == built[0].identity
    assert again.image.layers == built[0].image.layers


def test_the_list_of_files_of_a_package_is_whole_and_names_nothing_else(built, buildah):
    """uv's note of the host's own time is gone from the folder and from RECORD, which is otherwise as it was."""
    code = (
        "from importlib.metadata import distribution\n"
        "for name in ('idna', 'pyyaml', 'antlr4-python3-runtime'):\n"
        "    files = distribution(name).files\n"
        "    missing = [str(f) for f in files if not f.locate().is_file()]\n"
        "    print(len(files) > 5, missing, [f for f in files if 'uv_cache' in str(f)])"
    )
    lines = say(buildah, built[0].image.reference, f'python -c "{code}"')
    assert lines == ["True [] []"] * 3


def test_what_is_in_it_runs_for_the_unprivileged_user(built, buildah):
    image = built[0].image.reference
    code = "import idna, yaml, antlr4, packaging.version, envbuilder.errors; print(yaml.__with_libyaml__)"
    assert say(buildah, image, f"id -u; python -c '{code}'") == ["1000", "True"]
    manifest = json.loads("\n".join(say(buildah, image, "cat /opt/envbuilder/stack.json")))
    assert manifest["gpu"]["capability"]["value"] == "6.1"
    assert manifest["lock"] == built[0].image.labels["io.envbuilder.lock"]


def test_the_runtime_image_holds_no_tools_and_no_left_overs(built, buildah):
    image = built[0].image.reference
    for program in ("gcc", "cc", "g++", "c++", "clang", "as", "ld", "nvcc", "make", "pip", "uv"):
        assert say(buildah, image, f"command -v {program} || true") == [], program
    unwanted = (
        "-name __pycache__ -o -name '*.pyc' -o -path '*/.cache/*' -o -name '*.whl' -o -name '*.deb' -o -name .lock"
        " -o -name uv_cache.json"
    )
    assert (
        say(buildah, image, f"find /usr /opt /etc /home /root /var /mnt /tmp \\( {unwanted} \\) 2>/dev/null || true")
        == []
    )
    assert say(buildah, image, "find /var/cache/apt /var/lib/apt/lists /var/log -type f 2>/dev/null || true") == []
    # Nothing of this host, and nothing that changes from build to build.
    assert say(buildah, image, "cat /etc/apt/sources.list 2>/dev/null || true") == []
    assert say(buildah, image, "find /usr /opt /home -newermt '2025-09-08 00:00:01' 2>/dev/null | head -3") == []


def test_a_run_has_no_network_and_cannot_write_the_system(built, buildah):
    image = built[0].image.reference
    interfaces = [line.split(":")[0].strip() for line in say(buildah, image, "tail -n +3 /proc/net/dev")]
    assert interfaces == ["lo"]
    assert say(buildah, image, "touch /opt/venv/x 2>/dev/null || echo refused") == ["refused"]


def test_the_labels_say_what_it_is(built):
    labels = built[0].image.labels
    assert labels["io.envbuilder.stack"] == "small"
    assert labels["io.envbuilder.gpu.capability"] == "6.1"
    assert labels["org.opencontainers.image.created"] == "2025-09-08T00:00:00Z"
    assert labels["io.envbuilder.inputs"].startswith("sha256:")
    assert labels["io.envbuilder.target"] == "runtime"
    assert "io.buildah.version" not in labels


def test_the_record_is_whole(built, small, buildah):
    record = build_record(built[0], small[2], buildah, None)
    assert record["size"] == sum(layer["size"] for layer in record["layers"])
    assert [layer["title"] for layer in record["layers"]][:2] == [
        "Debian base",
        "virtual environment, 1 package",
    ]
    assert record["builder"]["engine"].startswith("buildah ")
    assert json.loads(json.dumps(record)) == record


def test_a_wheel_whose_bytes_differ_stops_the_build(built, small, buildah, other_cache):
    """Same name, same size, other bytes, put into the cache behind our back."""
    own = other_cache(small[2], base=True)
    # One package less: another layer, which is not there yet.
    lock = small[2].model_copy(update={"python": tuple(a for a in small[2].python if a.name != "packaging")})
    wheel = next(a for a in small[2].python if a.name == "idna")
    path = own / "sha256" / wheel.sha256[:2] / wheel.sha256
    shutil.copyfile(path, path.with_suffix(".new"))
    content = bytearray(path.with_suffix(".new").read_bytes())
    content[200] ^= 0xFF
    path.unlink()
    path.with_suffix(".new").unlink()
    path.write_bytes(content)
    stack = small[0].model_copy(update={"name": "tampered"})
    with pytest.raises(IntegrityError) as caught:
        build_stack(stack, small[1], lock, buildah, Silent())
    assert caught.value.message == f"the bytes of {wheel.filename} in the cache are not those of the lock"
    assert str(caught.value.place) == str(path)
    assert buildah.image("localhost/envbuilder/tampered:runtime") is None
    assert subprocess.run(["buildah", "containers", "-q"], capture_output=True, text=True, check=True).stdout == ""


def test_a_disk_that_is_too_small_is_told_before_anything_is_built(small, store, tmp_path, monkeypatch, other_cache):
    from envbuilder.image.buildah import Buildah

    other_cache(small[2], base=True)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "tmpfs", str(disk)], check=True)
    try:
        conf = tmp_path / "storage.conf"
        conf.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{disk}/graph"\nrunroot = "{disk}/run"\n')
        monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(conf))
        heard = Heard()
        with pytest.raises(HostError, match="are free; this one needs") as caught:
            build_stack(*small, Buildah(), heard)
        assert str(disk) in str(caught.value.place)
        assert [stage for stage in heard.stages if not stage.startswith("check ")] == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_the_bill_of_materials_names_what_the_image_itself_says_is_in_it(built, small, buildah, snapshot):
    """Asked of dpkg and of Python's own metadata inside the image, and held against the document."""
    image = built[0].image.reference
    contents = contents_of(image, Silent(), small[2])
    assert contents.digest == built[0].identity
    document = cyclonedx_text(contents)
    assert check(contents, document, image).verdict is Verdict.YES
    assert check(contents, spdx_text(contents), image).verdict is Verdict.YES
    named = {
        (c["purl"].split("/")[0], c["name"], c["version"]) for c in json.loads(document)["components"] if "purl" in c
    }
    debian = [line.split() for line in say(buildah, image, "dpkg-query -W -f '${Package} ${Version}\\n'")]
    code = "from importlib.metadata import distributions as d; [print(x.name.lower(), x.version) for x in d()]"
    python = [line.split() for line in say(buildah, image, f'python -c "{code}"')]
    assert {("pkg:deb", *line) for line in debian} == {one for one in named if one[0] == "pkg:deb"}
    assert {("pkg:pypi", *line) for line in python} <= named
    digests = {artifact.sha256 for artifact in (*small[2].python, *small[2].debs)}
    assert digests == {c.sha256 for c in contents.components if c.sha256}
    lines = (f"{c.purl} {' AND '.join(c.licences) or 'NOASSERTION'}" for c in contents.components)
    assert "\n".join(lines) == snapshot


def test_the_bill_of_materials_is_the_same_out_of_the_store_and_out_of_an_archive(built, small, buildah, tmp_path):
    image, path = built[0].image.reference, tmp_path / "image.tar"
    save(export(buildah, image, Silent()), path, Silent())
    wanted, found = contents_of(image, Silent(), small[2]), contents_of(str(path), Silent(), small[2])
    assert found.digest == wanted.digest
    assert cyclonedx_text(found) == cyclonedx_text(wanted)
    assert found.strangers == wanted.strangers
