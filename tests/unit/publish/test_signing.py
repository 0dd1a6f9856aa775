"""Signatures and the policy that asks for them. Keys are real ones, by openssl and ssh-keygen as well."""

import base64
import json
import os
import stat
import subprocess
import sys

import pytest

from envbuilder.cli import run
from envbuilder.errors import InputError, IntegrityError
from envbuilder.publish.attaching import Document, attach, attached
from envbuilder.publish.evidence import signature
from envbuilder.publish.layout import MANIFEST, describe
from envbuilder.publish.policy import admit, artifact_types, rules_for
from envbuilder.publish.remote import Remote
from envbuilder.publish.signing.interface import Outcome
from envbuilder.publish.signing.keyless import BUNDLE, KeylessVerifier
from envbuilder.publish.signing.keys import PASSWORD, PasswordNeededError, load_signer, load_verifier, new_key
from envbuilder.publish.statements import PROVENANCE, SIGNED, statement
from envbuilder.publish.verifying import admit_published
from envbuilder.report.progress import Silent

IMAGE = "sha256:" + "a" * 64
OTHER = "sha256:" + "b" * 64
NAME = "registry.example.org/team/p40"


def signed(signer, digest=IMAGE):
    return signature(NAME, digest, signer).body


@pytest.fixture
def keys(tmp_path):
    new_key(tmp_path / "ours", "")
    new_key(tmp_path / "theirs", "")
    return load_signer(tmp_path / "ours", None), load_signer(tmp_path / "theirs", None)


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Writes the user's settings; the project has none."""
    folder, project = tmp_path / "config", tmp_path / "project"
    folder.mkdir()
    project.mkdir()
    monkeypatch.chdir(project)
    monkeypatch.setattr("envbuilder.stack.settings.platformdirs.user_config_path", lambda name: folder)

    def write(text, of=folder):
        (of / "envbuilder.toml").write_text(text)

    write.project = lambda text: write(text, project)
    return write


def rule(key="../ours.pub", match="registry.example.org/*", more=""):
    return f'[[policy.images]]\nmatch = "{match}"\nrequire = "signed"\nkeys = ["{key}"]\n{more}'


def refusal(documents, name=NAME):
    with pytest.raises(IntegrityError) as caught:
        admit(name, IMAGE, documents, rules_for(name))
    assert caught.value.exit_code == 5
    return caught.value.message


def test_a_signed_image_is_admitted_and_it_is_said_who_signed(keys, user):
    user(rule())
    (who,) = admit(NAME, IMAGE, [signed(keys[0])], rules_for(NAME))
    assert who == f"{keys[0].who} (ours.pub)"


def test_every_way_not_to_be_signed_is_refused_with_its_reason(keys, user):
    user(rule())
    ours, theirs = keys
    assert refusal([]) == f"{NAME}@{IMAGE} is refused: it is not signed"
    assert f"signed by somebody else: {theirs.who}" in refusal([signed(theirs)])
    assert f"is for another image: {OTHER}" in refusal([signed(ours, OTHER)])
    tampered = json.loads(signed(ours, OTHER))
    payload = base64.b64decode(tampered["payload"]).replace(b"b" * 64, b"a" * 64)
    tampered["payload"] = base64.b64encode(payload).decode()
    assert "its signature is wrong" in refusal([json.dumps(tampered).encode()])
    renamed = json.loads(signed(theirs))
    renamed["signatures"][0]["keyid"] = json.loads(signed(ours))["signatures"][0]["keyid"]
    assert "its signature is wrong" in refusal([json.dumps(renamed).encode()])


JUNK = [
    (b"", "nobody"),
    (b"[", "nobody"),
    (b"{}", "nobody"),
    (b"[" * 100_000, "nobody"),
    (b'{"payload": 1, "payloadType": "x", "signatures": []}', "nobody"),
    (b'{"payload": "", "payloadType": "x", "signatures": []}', "nobody"),
    (b'{"payload": "", "payloadType": "x", "signatures": [{"sig": "", "keyid": 3}]}', "key 3"),
]


@pytest.mark.parametrize(("junk", "signer"), JUNK)
def test_junk_beside_an_image_is_no_signature_and_hides_none(keys, user, junk, signer):
    user(rule())
    assert f"signed by somebody else: {signer}" in refusal([junk])
    assert admit(NAME, IMAGE, [junk, signed(keys[0])], rules_for(NAME))


def test_another_kind_of_document_signed_by_the_same_key_is_no_signature_of_the_image(keys, user):
    user(rule())
    ours, _ = keys
    provenance = ours.sign(statement(NAME, IMAGE, PROVENANCE, {})).body
    assert "is not signed" in refusal([provenance])
    from securesystemslib.dsse import Envelope

    other = Envelope(statement(NAME, IMAGE, SIGNED, {}), "text/plain", {})
    other.sign(ours._signer)
    assert "no statement on an image" in refusal([json.dumps(other.to_dict()).encode()])


def test_a_key_id_is_a_hint_and_not_relied_on(keys, user):
    user(rule())
    nameless = json.loads(signed(keys[0]))
    nameless["signatures"][0]["keyid"] = ""
    assert admit(NAME, IMAGE, [json.dumps(nameless).encode()], rules_for(NAME))


def test_a_project_cannot_take_back_what_the_user_asks_for(keys, user):
    user(rule())
    user.project('[[policy.images]]\nmatch = "*"\nrequire = "nothing"\n')
    assert "is not signed" in refusal([])
    user.project(rule("../theirs.pub"))
    assert "signed by somebody else" in refusal([signed(keys[0])])
    assert len(admit(NAME, IMAGE, [signed(keys[0]), signed(keys[1])], rules_for(NAME))) == 2


def test_the_first_pattern_that_matches_counts(user, keys):
    user('[[policy.images]]\nmatch = "registry.example.org/free/*"\nrequire = "nothing"\n' + rule(match="*"))
    assert rules_for("registry.example.org/free/tool") == ()
    assert len(rules_for("registry.example.org/team/p40")) == 1
    assert len(rules_for("docker.io/library/x")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (rule(more="unheard = 1\n"), "unknown key"),
        (rule(key="missing.pub"), "cannot be read"),
        (rule(key="envbuilder.toml"), "no public key"),
        ('[[policy.images]]\nmatch = "*"\nrequire = "signed"\n', "nobody's signature is accepted"),
        ('[[policy.images]]\nmatch = "*"\nrequire = "singed"\n', "should be 'signed' or 'nothing'"),
        ('[[policy.images]]\nrequire = "signed"\n', "missing"),
        ("[policy]\nimage = []\n", "unknown key"),
        *(
            (rule(match=one), "matches no image")
            for one in ("", "registry.example.org", "https://registry.example.org/*", "a/b:1", "a/b@sha256:*", "a/b ")
        ),
    ],
)
def test_a_wrong_policy_stops(user, keys, text, says):
    user(text)
    with pytest.raises(InputError, match=says):
        rules_for(NAME)


def test_a_policy_that_is_there_and_cannot_be_read_stops(tmp_path, user):
    settings = tmp_path / "config" / "envbuilder.toml"
    settings.mkdir()
    with pytest.raises(InputError, match="Is a directory"):
        rules_for(NAME)
    settings.rmdir()
    settings.symlink_to("gone")
    with pytest.raises(InputError, match="no such file"):
        rules_for(NAME)


def test_a_document_of_another_image_or_one_too_long_is_not_looked_at(registry):
    remote = Remote.open(f"{registry.host}/team/p40:v1")
    image, other = describe(b"{}", MANIFEST), describe(b"{ }", MANIFEST)
    attach(remote, Document(b"said", "text/plain", "text/x"), other, Silent())
    assert list(attached(remote, image.digest, ("text/x",), 100)) == []
    assert list(attached(remote, other.digest, ("text/x",), 100)) == [b"said"]
    assert list(attached(remote, other.digest, ("text/x",), 3)) == [], "longer than asked for"


def test_a_manifest_of_a_document_is_an_oci_artifact():
    subject = describe(b"{}", MANIFEST, {"note": "x"})
    manifest = json.loads(Document(b"said", "text/plain", "text/x", {"a": "b"}).manifest(subject))
    assert manifest["subject"] == {"mediaType": MANIFEST, "digest": subject.digest, "size": 2}
    assert manifest["config"]["mediaType"] == "application/vnd.oci.empty.v1+json"
    assert (manifest["artifactType"], manifest["annotations"]) == ("text/x", {"a": "b"})


@pytest.mark.parametrize(
    "made_by",
    [
        ["openssl", "genpkey", "-algorithm", "ed25519", "-out", "k"],
        ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "k"],
        ["openssl", "ecparam", "-genkey", "-name", "secp384r1", "-noout", "-out", "k"],
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "k"],
        ["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", "k"],
    ],
)
def test_keys_of_openssl_and_ssh_keygen_serve(tmp_path, made_by, user):
    subprocess.run(made_by, cwd=tmp_path, check=True, capture_output=True)
    if made_by[0] == "openssl":
        subprocess.run(["openssl", "pkey", "-in", "k", "-pubout", "-out", "k.pub"], cwd=tmp_path, check=True)
    user(rule("../k.pub"))
    assert admit(NAME, IMAGE, [signed(load_signer(tmp_path / "k", None))], rules_for(NAME))


def test_openssl_verifies_what_is_signed(tmp_path, keys):
    """Somebody else's program, on the bytes that DSSE says are signed."""
    envelope = json.loads(signed(keys[0]))
    payload = base64.b64decode(envelope["payload"])
    kind = envelope["payloadType"].encode()
    (tmp_path / "pae").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = [
        "openssl",
        "pkeyutl",
        "-verify",
        "-pubin",
        "-inkey",
        "ours.pub",
        "-rawin",
        "-in",
        "pae",
        "-sigfile",
        "sig",
    ]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "Verified Successfully" in said


def test_a_private_key_is_its_owners_alone_and_encrypted_by_a_password(tmp_path):
    new_key(tmp_path / "k", "secret")
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o600
    assert b"ENCRYPTED PRIVATE KEY" in (tmp_path / "k").read_bytes()
    with pytest.raises(PasswordNeededError, match="encrypted"):
        load_signer(tmp_path / "k", None)
    with pytest.raises(InputError, match="password is wrong"):
        load_signer(tmp_path / "k", "wrong")
    signer = load_signer(tmp_path / "k", "secret")
    assert load_verifier(tmp_path / "k.pub").verify(signed(signer))[0] is Outcome.GOOD
    with pytest.raises(InputError, match="already"):
        new_key(tmp_path / "k", "")


def test_a_password_for_a_key_that_has_none_does_no_harm(tmp_path):
    new_key(tmp_path / "k", "")
    load_signer(tmp_path / "k", "needless")


@pytest.mark.parametrize("content", [b"", b"text", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_what_is_no_key_is_refused(tmp_path, content):
    (tmp_path / "k").write_bytes(content)
    for load in (lambda p: load_signer(p, None), load_verifier):
        with pytest.raises(InputError, match=r"no (private|public) key"):
            load(tmp_path / "k")


def test_an_rsa_key_is_refused_with_the_kinds_that_are_taken(tmp_path):
    subprocess.run(["openssl", "genrsa", "-out", str(tmp_path / "k"), "2048"], check=True, capture_output=True)
    with pytest.raises(InputError) as caught:
        load_signer(tmp_path / "k", None)
    assert "ed25519 or ECDSA" in caught.value.cure


def test_the_command_makes_a_key_and_never_says_the_password(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv(PASSWORD, "s3cret-word")
    assert run(["sign", "--new-key", str(tmp_path / "k")]) == 0
    assert run(["sign", f"{NAME}:latest", "--key", str(tmp_path / "k")]) == 2
    assert run(["sign", "--key", str(tmp_path / "k")]) == 2
    assert run(["sign", f"{NAME}@{IMAGE}"]) == 2
    monkeypatch.setenv(PASSWORD, "wr0ng-word")
    assert run(["sign", f"{NAME}@{IMAGE}", "--key", str(tmp_path / "k")]) == 2
    said = capsys.readouterr()
    assert "a tag may name another tomorrow" in said.err
    assert "s3cret-word" not in said.out + said.err
    assert "wr0ng-word" not in said.out + said.err


def test_keyless_bundles_that_are_none_are_refused_without_asking_anybody(user):
    user('[[policy.images]]\nmatch = "*"\nrequire = "signed"\n[[policy.images.identities]]\n'
         'identity = "dev@example.org"\nissuer = "https://accounts.example.org"\n')  # fmt: skip
    rules = rules_for(NAME)
    assert artifact_types(rules) == (BUNDLE,)
    assert "nobody: it is no Sigstore bundle" in refusal([b"{}"])
    assert "is not signed" in refusal([])


def test_without_its_library_keyless_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sigstore", None)
    with pytest.raises(Exception, match="sigstore, which is not installed"):
        KeylessVerifier("a", "https://b").verify(b"{}")


def test_the_umask_is_left_as_it_was(tmp_path):
    before = os.umask(0o022)
    os.umask(before)
    new_key(tmp_path / "k", "")
    assert os.umask(before) == before


@pytest.mark.parametrize("referrers_api", [True, False])
def test_an_image_is_signed_in_its_registry_and_admitted_from_there(keys, user, registry, capsys, referrers_api):
    registry.referrers_api = referrers_api
    remote = Remote.open(f"{registry.host}/team/p40:v1")
    body = b'{"schemaVersion":2,"mediaType":"%s"}' % MANIFEST.encode()
    digest = remote.put_manifest(body, MANIFEST, "v1")
    subject = describe(body, MANIFEST)
    user(rule(match=f"{registry.host}/*"))
    with pytest.raises(IntegrityError, match="it is not signed"):
        admit_published([remote], subject)
    for _ in range(2):
        assert run(["sign", f"{registry.host}/team/p40@{digest}", "--key", "../theirs"]) == 0
    assert len(remote.referrers(digest)) == 1, "ed25519 signs the same bytes the same way"
    with pytest.raises(IntegrityError, match="signed by somebody else"):
        admit_published([remote], subject)
    assert run(["sign", f"{registry.host}/team/p40@{digest}", "--key", "../ours"]) == 0
    assert keys[0].who in capsys.readouterr().out
    assert admit_published([remote], subject) == (f"{keys[0].who} (ours.pub)",)


def test_a_signature_that_a_registry_moves_to_another_image_is_refused(keys, user, registry):
    """The registry may put our own signature beside whatever it likes."""
    remote = Remote.open(f"{registry.host}/team/p40:v1")
    user(rule(match=f"{registry.host}/*"))
    evil = describe(b'{"schemaVersion":2,"evil":1}', MANIFEST)
    attach(remote, signature(NAME, IMAGE, keys[0]), evil, Silent())
    with pytest.raises(IntegrityError, match="is for another image"):
        admit_published([remote], evil)


def test_an_unsigned_registry_is_asked_nothing_when_no_policy_matches(registry, user):
    user(rule(match="elsewhere/*"))
    assert admit_published([Remote.open(f"{registry.host}/team/p40:v1")], describe(b"", MANIFEST)) == ()
    assert registry.asked == []
