"""An image of the small stack rebuilt and compared by a real buildah; a changed one is found out."""

import json
import signal
import subprocess
import sys
import textwrap

import pytest

from envbuilder.errors import NotEnoughError
from envbuilder.image.building import Recipe, build_stack
from envbuilder.image.names import REBUILT
from envbuilder.publish import reproduce as reproducing
from envbuilder.publish.reproduce import compare, reproduce
from envbuilder.report.progress import Silent

pytestmark = pytest.mark.xdist_group("small-stack")


@pytest.fixture(scope="module")
def image(store, small):
    """The small stack's image in the store; its name."""
    from envbuilder.image.buildah import Buildah

    return build_stack(*small, Buildah(), Silent()).image.reference


@pytest.fixture
def known(small, monkeypatch):
    """The small stack is no file of the project: its lock is found all the same."""
    monkeypatch.setattr(reproducing, "find_recipe", lambda *_: (Recipe(*small), None))


def ids():
    found = subprocess.run(["buildah", "images", "--all", "--quiet"], capture_output=True, text=True, check=True)
    return sorted(found.stdout.split())


def changed(image, tag, *commands):
    """Change an image behind our back and give the result the name ``tag``."""
    container = subprocess.run(["buildah", "from", image], capture_output=True, text=True, check=True).stdout.strip()
    for command in commands:
        run = ["buildah", "run", "--user", "root", "--isolation", "chroot", container, "--", "sh", "-c", command]
        subprocess.run(run, check=True, capture_output=True)
    subprocess.run(["buildah", "commit", "--rm", "--timestamp", "1757289600", container, tag], check=True)
    return tag


def test_an_image_of_its_lock_is_digest_equal_and_nothing_is_left(image, known, buildah):
    before = ids()
    report = reproduce(image, "buildah", None, Silent())
    assert report.facts["level"] == "digest-equal", report.facts
    assert report.facts["digest"] == buildah.identity(buildah.image(image), Silent())
    assert report.facts["made of"]["same inputs"] is True
    assert report.facts["made of"]["uv"] == report.facts["here"]["uv"]
    assert report.facts["made of"]["envbuilder"] == report.facts["here"]["envbuilder"]
    assert ids() == before


def test_a_changed_image_is_found_out_file_by_file(image, known, store, tmp_path):
    site = "/opt/venv/lib/python3.11/site-packages"
    other = changed(
        image,
        "localhost/test/changed:1",
        f"echo '# evil' >> {site}/idna/core.py; touch /usr/bin/new; chmod 4755 /bin/cat",
    )
    report = reproduce(other, "buildah", None, Silent())
    assert (report.facts["level"], report.verdict.exit_code) == ("different", 1)
    found = report.facts["differences"]
    assert [(row["place"], row["aspect"]) for row in found["packages"]["listed"]] == [
        (f"{site}/idna/core.py", "content")
    ]
    assert [(row["place"], row["aspect"]) for row in found["unknown"]["listed"]] == [("/usr/bin/new", "presence")]
    assert [(r["place"], r["first"], r["second"]) for r in found["modes"]["listed"]] == [
        ("/usr/bin/cat", "4755", "0755")
    ]
    assert "do not trust the image" in next(f for f in report.findings if f.rule == "packages").cure
    # The same out of an archive, whose name says nothing.
    archive = tmp_path / "image.tar"
    subprocess.run(["buildah", "push", "--quiet", other, f"docker-archive:{archive}"], check=True)
    again = compare(str(archive), image, "buildah", Silent())
    assert again.facts["differences"] == found


def test_an_archive_of_the_image_is_digest_equal_in_any_packing(image, known, store, tmp_path):
    for kind, name in (("oci", tmp_path / "layout"), ("oci-archive", tmp_path / "image.tar")):
        subprocess.run(["buildah", "push", "--quiet", image, f"{kind}:{name}"], check=True)
        assert reproduce(str(name), "buildah", None, Silent()).facts["level"] == "digest-equal"


def test_the_small_stack_is_no_file_so_its_lock_is_not_found(image):
    with pytest.raises(NotEnoughError, match="is not here"):
        reproduce(image, "buildah", None, Silent())


_CHILD = textwrap.dedent("""
    import sys
    from envbuilder import cli
    from envbuilder.image.building import Recipe
    from envbuilder.publish import reproduce
    from tests.small_stack import small_stack

    reproduce.find_recipe = lambda *_: (Recipe(*small_stack()), None)
    sys.exit(cli.run(["reproduce", sys.argv[1], "--engine", "buildah"]))
""")


def test_interrupted_it_leaves_no_second_image(image, store):
    process = subprocess.Popen([sys.executable, "-c", _CHILD, image], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("libraries, "):
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (130, False), errors
    listed = subprocess.run(["buildah", "images", "--json"], capture_output=True, text=True, check=True).stdout
    assert not [name for row in json.loads(listed) for name in row["names"] or () if name.startswith(REBUILT)]
    assert subprocess.run(["buildah", "containers", "-q"], capture_output=True, text=True, check=True).stdout == ""
