"""From one host to another: through a real registry, as an archive, and as a bundle where there is no network at all.

The small stack is real (Debian's base, Python, five packages), and so are buildah, the registry and the namespaces;
`verify` needs torch, which is not in it, so what runs on the second host is its Python with its packages.
"""

import json
from collections.abc import Iterator

import pytest

from envbuilder.fetch.fetching import fetch
from envbuilder.image.names import image_tag
from envbuilder.report.progress import Silent
from tests.e2e.conftest import Net
from tests.e2e.hosts import RESULTS, Host, refused
from tests.e2e.published import digests, write_small_project
from tests.e2e.tampering import flipped_member
from tests.small_stack import small_stack

pytestmark = pytest.mark.e2e

IMAGE = image_tag("small")
CODE = "import idna, yaml, antlr4, packaging.version, envbuilder.errors; print('it runs', yaml.__with_libyaml__)"
POLICY = '[[policy.images]]\nmatch = "*"\nrequire = "signed"\nkeys = ["release.key.pub"]\n'


@pytest.fixture(scope="module")
def first(net: Net, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """The host where the small stack was built, with a key to sign with."""
    stack, _, lock = small_stack()
    fetch(stack, lock, Silent())
    host = Host(tmp_path_factory.mktemp("hosts") / "first", net.first, net.authority.path)
    write_small_project(host.project)
    host.has_fetched((*lock.python, *lock.debs))
    built = host.envbuilder("build", "small", "--engine", "buildah")
    assert built.returncode == 0, built.stderr
    key = host.envbuilder("sign", "--new-key", "release.key")
    assert key.returncode == 0, key.stderr
    yield host
    host.remove()


@pytest.fixture(scope="module")
def pushed(first: Host, net: Net) -> dict:
    """The image in the registry, not signed by anybody."""
    done = first.envbuilder("push", "small", f"{net.registry.host}/team/small:1", "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def runs(host: Host) -> None:
    """The image runs on ``host``, for a user without privileges."""
    done = host.inside(IMAGE, "sh", "-c", 'id -u; python -c "$0"', CODE)
    assert (done.returncode, done.stdout.split("\n")[:2]) == (0, ["1000", "it runs True"]), done.stderr


def test_pushed_pulled_by_digest_and_run(first: Host, second: Host, pushed: dict) -> None:
    assert second.left() == RESULTS
    pulled = second.envbuilder("pull", pushed["pinned"], "--json")
    assert pulled.returncode == 0, pulled.stderr
    said = json.loads(pulled.stdout)
    assert (said["image"], said["digest"], said["id"]) == (IMAGE, pushed["digest"], pushed["config"])
    assert said["bytes_moved"] == pushed["bytes_moved"]
    assert second.left() == {**RESULTS, "images": [IMAGE]}
    runs(second)
    again = second.envbuilder("pull", pushed["pinned"], "--json")
    assert json.loads(again.stdout)["pulled"] is False
    assert json.loads(again.stdout)["bytes_moved"] == 0
    # It travels on as what it was pulled: the same digest, and nothing to move.
    write_small_project(second.project)
    onwards = second.envbuilder("push", "small", f"{pushed['to'].rpartition(':')[0]}:2", "--json")
    assert onwards.returncode == 0, onwards.stderr
    assert json.loads(onwards.stdout)["digest"] == pushed["digest"]
    assert json.loads(onwards.stdout)["bytes_moved"] == 0


def test_a_tag_is_no_name_of_an_image(second: Host, pushed: dict) -> None:
    refused(second.envbuilder("pull", pushed["to"]), 2, "is a tag, which anybody who may push", pushed["pinned"])
    assert second.left() == RESULTS


@pytest.mark.parametrize("which", ["largest layer", "smallest layer", "configuration", "manifest"])
def test_one_bit_of_one_blob_is_noticed(first: Host, second: Host, net: Net, pushed: dict, which: str) -> None:
    config, layers = digests(first, pushed["digest"])
    blobs = {"largest layer": layers[-1], "smallest layer": layers[0], "configuration": config}
    digest = blobs.get(which, pushed["digest"])
    with net.registry.tampered(digest):
        done = second.envbuilder("pull", pushed["pinned"])
        refused(done, 5, net.registry.host, "Nothing of it was kept")
        assert second.left() == RESULTS
        assert second.envbuilder("pull", pushed["pinned"]).returncode == 5, "and again the next time"
    # Put right, it comes: nothing bad was left that would be taken for good.
    assert second.envbuilder("pull", pushed["pinned"]).returncode == 0
    assert second.left() == {**RESULTS, "images": [IMAGE]}


def test_the_policy_lets_in_what_is_signed(first: Host, second: Host, net: Net, pushed: dict) -> None:
    """Nobody has signed the first; a stranger signs the second, then we do."""
    (second.project / "envbuilder.toml").write_text(POLICY)
    (second.project / "release.key.pub").write_bytes((first.project / "release.key.pub").read_bytes())
    refused(second.envbuilder("pull", pushed["pinned"]), 5, f"{pushed['digest']} is refused: it is not signed")
    assert second.left() == RESULTS
    assert second.fetched() == 0

    stranger = first.envbuilder("sign", "--new-key", "stranger.key")
    assert stranger.returncode == 0, stranger.stderr
    for key, code in (("stranger.key", 5), ("release.key", 0)):
        signed = first.envbuilder("sign", pushed["pinned"], "--key", key)
        assert signed.returncode == 0, signed.stderr
        pulled = second.envbuilder("pull", pushed["pinned"])
        assert pulled.returncode == code, (key, pulled.stderr)
        if code:
            refused(pulled, 5, "is refused: it is signed by somebody else")
            assert second.left() == RESULTS
        else:
            assert "signed  by key " in pulled.stdout
    runs(second)


def test_saved_and_loaded_without_a_network(first: Host, island: Host) -> None:
    saved = first.envbuilder("save", "small", str(island.root / "plain.tar"), "--json")
    assert saved.returncode == 0, saved.stderr
    whole = island.root / "plain.tar"
    with flipped_member(whole) as name:
        refused(island.envbuilder("load", str(whole)), 5, f"the bytes of {name} are not those of its name")
        assert island.left() == RESULTS
    loaded = island.envbuilder("load", str(whole), "--json")
    assert loaded.returncode == 0, loaded.stderr
    assert json.loads(loaded.stdout)["digest"] == json.loads(saved.stdout)["digest"]
    assert island.left() == {**RESULTS, "images": [IMAGE]}
    runs(island)


def test_an_archive_is_held_against_the_policy(first: Host, island: Host) -> None:
    (island.project / "envbuilder.toml").write_text(POLICY)
    (island.project / "release.key.pub").write_bytes((first.project / "release.key.pub").read_bytes())
    stranger = first.envbuilder("sign", "--new-key", "other.key")
    assert stranger.returncode == 0, stranger.stderr
    archive = str(island.root / "image.tar")
    said = first.envbuilder("save", "small", archive, "--sign", "other.key")
    assert said.returncode == 0, said.stderr
    refused(island.envbuilder("load", archive), 5, "is refused: it is signed by somebody else")
    assert island.left() == RESULTS
    said = first.envbuilder("save", "small", archive, "--sign", "release.key")
    assert said.returncode == 0, said.stderr
    loaded = island.envbuilder("load", archive)
    assert loaded.returncode == 0, loaded.stderr
    assert "signed  by key " in loaded.stdout
    runs(island)


def test_built_from_a_bundle_without_a_network(first: Host, island: Host, pushed: dict) -> None:
    """The same image as on the first host, made on one that reaches nothing."""
    bundle = island.root / "small.bundle"
    packed = first.envbuilder("bundle", "small", str(bundle))
    assert packed.returncode == 0, packed.stderr
    build = ("build", "--engine", "buildah", "--bundle", str(bundle))
    with flipped_member(bundle) as name:
        refused(island.envbuilder(*build), 5, f"the bytes of {name} are not those of its name")
        assert island.left() == RESULTS
    built = island.envbuilder(*build, "--json")
    assert built.returncode == 0, built.stderr
    assert json.loads(built.stdout)["id"] == pushed["config"]
    runs(island)
