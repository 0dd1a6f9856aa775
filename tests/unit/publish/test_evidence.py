"""What goes with an image: through a registry and in an archive, and what a policy makes of it on the other side."""

import base64
import json
from pathlib import Path

import pytest

from envbuilder.errors import IntegrityError
from envbuilder.image.names import image_tag
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.reading import load_lock
from envbuilder.publish.archive import load, save
from envbuilder.publish.attaching import Document, attach_beside, attached
from envbuilder.publish.evidence import documents_beside, lay_evidence, send_evidence
from envbuilder.publish.export import export
from envbuilder.publish.pull import pull
from envbuilder.publish.push import push
from envbuilder.publish.remote import Remote
from envbuilder.publish.sbom import cyclonedx
from envbuilder.publish.signing.keys import load_signer, new_key
from envbuilder.publish.statements import PROVENANCE
from envbuilder.publish.verifying import admit_archive, admit_published
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from tests.unit.publish.stand_in_image import files, tar_of
from tests.unit.publish.stand_ins import StandInEngine

NAME = image_tag("p40-debian")
LIMIT = 1 << 26


@pytest.fixture
def signer(tmp_path):
    new_key(tmp_path / "ours", "")
    return load_signer(tmp_path / "ours", None)


@pytest.fixture
def policy(tmp_path, monkeypatch):
    """The policy of this host: every image signed by our key."""
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr("envbuilder.stack.settings.platformdirs.user_config_path", lambda name: tmp_path / "none")

    def ask(key="../ours.pub"):
        (project / "envbuilder.toml").write_text(
            f'[[policy.images]]\nmatch = "*"\nrequire = "signed"\nkeys = ["{key}"]\n'
        )

    return ask


@pytest.fixture
def image():
    """(engine, exported image) of a stack whose lock is at hand."""
    engine = StandInEngine()
    stack, _ = load_stack("p40-debian")
    labels = {"io.envbuilder.stack": stack.name, "io.envbuilder.lock": load_lock(stack).digest}
    engine.make(NAME, [tar_of(files()), tar_of({"opt/more": b"x"})], labels)
    return engine, export(engine, NAME, Silent())


def published(registry, exported):
    remote = Remote.open(f"{registry.host}/team/p40:1")
    pushed = push(exported, remote, Silent())
    return remote, pushed


def test_contents_and_provenance_go_with_an_image_once(registry, image):
    _, exported = image
    remote, pushed = published(registry, exported)
    for new in (3, 0):
        lay_evidence(exported, "stand-in", None, Silent())
        assert send_evidence(exported, remote, Silent()) == new
    types = sorted(entry.artifact_type for entry in remote.referrers(pushed.digest))
    assert types == ["application/spdx+json", "application/vnd.cyclonedx+json", "application/vnd.in-toto+json"]
    (sbom,) = attached(remote, pushed.digest, ("application/vnd.cyclonedx+json",), LIMIT)
    assert json.loads(sbom)["metadata"]["component"]["version"] == exported.config.digest
    (said,) = attached(remote, pushed.digest, ("application/vnd.in-toto+json",), LIMIT)
    assert json.loads(said)["subject"][0]["digest"] == {"sha256": pushed.digest.removeprefix("sha256:")}


def test_a_signer_signs_provenance_and_image(registry, image, signer):
    _, exported = image
    lay_evidence(exported, "stand-in", signer, Silent())
    lay_evidence(exported, "stand-in", signer, Silent())
    said = documents_beside(exported)
    assert [line.split(" by ")[0] for line in said] == ["cyclonedx", "provenance", "signature", "spdx"]
    assert said[2] == f"signature by {signer.who}"
    remote, pushed = published(registry, exported)
    send_evidence(exported, remote, Silent())
    envelopes = list(attached(remote, pushed.digest, ("application/vnd.dsse.envelope.v1+json",), LIMIT))
    kinds = {json.loads(base64.b64decode(json.loads(one)["payload"]))["predicateType"] for one in envelopes}
    assert PROVENANCE in kinds
    assert len(envelopes) == 2


def test_a_policy_lets_in_what_was_signed_and_nothing_else(registry, image, signer, policy, tmp_path, monkeypatch):
    _, exported = image
    remote, pushed = published(registry, exported)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other host"))
    policy()
    engine = StandInEngine()
    with pytest.raises(IntegrityError, match="it is not signed"):
        pull(pushed.pinned, engine, Mirrors(), Silent(), admit_published)
    assert engine.images == {}
    lay_evidence(exported, "stand-in", signer, Silent())
    send_evidence(exported, remote, Silent())
    came = pull(pushed.pinned, engine, Mirrors(), Silent(), admit_published)
    assert came.signed_by == (f"{signer.who} (ours.pub)",)
    # From here it goes on, with what is said of it, in an archive.
    save(export(engine, came.name, Silent()), tmp_path / "onward.tar", Silent())
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "third host"))
    onward = load(tmp_path / "onward.tar", StandInEngine(), Silent(), admit_archive)
    assert (onward.signed_by, onward.referrers) == (came.signed_by, 4)
    new_key(tmp_path / "theirs", "")
    policy("../theirs.pub")
    with pytest.raises(IntegrityError, match="signed by somebody else"):
        pull(pushed.pinned, engine, Mirrors(), Silent(), admit_published)


def test_a_mirror_that_has_no_signatures_does_no_harm(registry, image, signer, policy):
    _, exported = image
    lay_evidence(exported, "stand-in", signer, Silent())
    remote, pushed = published(registry, exported)
    send_evidence(exported, remote, Silent())
    policy()
    silent = Remote.open("127.0.0.1:9/team/p40:1")
    assert admit_published([silent, remote], exported.manifest)
    assert pushed.digest == exported.digest


def test_a_signature_travels_in_an_archive(image, signer, policy, tmp_path, monkeypatch):
    _, exported = image
    unsigned = save(exported, tmp_path / "unsigned.tar", Silent()).path
    lay_evidence(exported, "stand-in", signer, Silent())
    signed = save(exported, tmp_path / "signed.tar", Silent()).path
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other host"))
    policy()
    engine = StandInEngine()
    with pytest.raises(IntegrityError, match=r"archive@sha256:.* is refused: it is not signed") as caught:
        load(unsigned, engine, Silent(), admit_archive)
    assert caught.value.exit_code == 5
    assert engine.images == {}
    loaded = load(signed, engine, Silent(), admit_archive)
    assert loaded.signed_by == (f"{signer.who} (ours.pub)",)
    assert loaded.referrers == 4


def test_what_came_with_an_image_does_not_stand_in_for_what_is_made_here(image, signer):
    """Whatever a stranger's document calls itself."""
    _, exported = image
    subject = exported.manifest
    attach_beside(exported.layout, Document(b"{}", cyclonedx.MEDIA_TYPE, cyclonedx.MEDIA_TYPE), subject)
    lay_evidence(exported, "stand-in", signer, Silent())
    said = documents_beside(exported)
    assert [line.split(" ")[0] for line in said] == [
        cyclonedx.MEDIA_TYPE,
        "cyclonedx",
        "provenance",
        "signature",
        "spdx",
    ]
    (exported.layout.folder / "made-here.json").write_text("[")
    lay_evidence(exported, "stand-in", signer, Silent())
    assert documents_beside(exported) == said, "made anew, and the same"


def test_without_the_lock_there_is_no_provenance_and_it_is_said(registry):
    engine = StandInEngine()
    engine.make(NAME, [tar_of(files())], {"io.envbuilder.stack": "p40-debian", "io.envbuilder.lock": "sha256:0"})
    exported = export(engine, NAME, Silent())

    class Heard(Silent):
        lines = ()

        def log(self, line):
            self.lines += (line,)

    heard = Heard()
    lay_evidence(exported, "stand-in", None, heard)
    assert heard.lines == ("no provenance: the stack and lock this image was built from are not at hand",)
    assert [line.split(" by ")[0] for line in documents_beside(exported)] == ["cyclonedx", "spdx"]
    assert Path(exported.layout.folder).is_dir()
