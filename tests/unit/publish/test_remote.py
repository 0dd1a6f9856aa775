"""A repository in a registry that behaves, drops, lies or wants a login."""

import base64
import json
from collections.abc import Callable
from datetime import datetime, tzinfo
from pathlib import Path

import pytest
from werkzeug import Request, Response

from envbuilder.errors import InputError, IntegrityError, SourceError
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.registry import NotServedError
from envbuilder.publish import answers, uploads
from envbuilder.publish.layout import CONFIG, EMPTY, MANIFEST, canonical, describe
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Silent
from tests.fake_registry import FakeRegistry

BLOB = bytes(range(256)) * 400
SUBJECT = describe(b'{"schemaVersion":2}', MANIFEST)


class Heard(Silent):
    def __init__(self) -> None:
        self.last = (0, 0)

    def advance(self, done: int, total: int | None = None) -> None:
        self.last = (done, total or 0)


@pytest.fixture
def remote(registry: FakeRegistry) -> Remote:
    return Remote.open(f"{registry.host}/team/stack:1")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "CHUNK", 16 * 1024)


def log_in(host: Path, registry: FakeRegistry, password: str) -> None:
    path = host / ".docker" / "config.json"
    path.parent.mkdir(exist_ok=True)
    entry = {"auth": base64.b64encode(f"me:{password}".encode()).decode()}
    path.write_text(json.dumps({"auths": {registry.host: entry}}))


def test_what_is_asked_for(registry: FakeRegistry, remote: Remote) -> None:
    digest = f"sha256:{'0' * 64}"
    assert (remote.reference, remote.pinned(digest)) == ("1", f"{registry.host}/team/stack@{digest}")
    assert Remote.open(remote.pinned(digest)).reference == digest
    with pytest.raises(InputError):
        Remote.open("no such name!")


def test_mirrors_are_asked_first_and_pinned_names_are_the_registrys_own() -> None:
    mirrors = Mirrors((("docker.io", "mirror.example"),))
    remotes = Remote.mirrored("docker.io/me/stack:1", mirrors)
    assert [remote.host for remote in remotes] == ["mirror.example", "docker.io"]
    assert remotes[0].pinned("sha256:x") == "docker.io/me/stack@sha256:x"


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("size", [0, 1, 16 * 1024 - 1, 16 * 1024, 16 * 1024 + 1, len(BLOB)])
def test_a_blob_arrives_whole(registry: FakeRegistry, remote: Remote, tmp_path: Path, size: int) -> None:
    body, heard = BLOB[:size], Heard()
    descriptor = describe(body, CONFIG)
    assert not remote.has(descriptor.digest)
    (tmp_path / "blob").write_bytes(body)
    remote.upload(tmp_path / "blob", descriptor, heard)
    assert registry.blobs[descriptor.digest] == body
    assert remote.has(descriptor.digest)
    assert remote.read(descriptor) == body
    assert size == 0 or heard.last == (size, size)
    assert not list((tmp_path / "cache" / "uploads").glob("*"))


@pytest.mark.usefixtures("small_chunks")
def test_a_broken_upload_goes_on_where_the_registry_says(registry: FakeRegistry, remote: Remote) -> None:
    registry.drop_after = [5000, 0, 16_000]
    heard = Heard()
    descriptor = describe(BLOB, CONFIG)
    remote.upload(BLOB, descriptor, heard)
    assert registry.blobs[descriptor.digest] == BLOB
    assert heard.last == (len(BLOB), len(BLOB))
    assert registry.received == len(BLOB) - 21_000, "what had arrived before the drops was not sent again"


@pytest.mark.usefixtures("small_chunks")
def test_another_run_goes_on_as_well(registry: FakeRegistry, remote: Remote, tmp_path: Path) -> None:
    descriptor = describe(BLOB, CONFIG)
    registry.drop_after = [16_000] + [0] * 20
    with pytest.raises(SourceError, match="keeps breaking") as caught:
        remote.upload(BLOB, descriptor, Silent())
    assert "16000 of" in str(caught.value.detail)
    note = next((tmp_path / "cache" / "uploads").iterdir())
    assert note.stat().st_mode & 0o077 == 0
    registry.drop_after, registry.received = [], 0
    remote.upload(BLOB, descriptor, Silent())
    assert registry.blobs[descriptor.digest] == BLOB
    assert registry.received == len(BLOB) - 16_000


@pytest.mark.usefixtures("small_chunks")
def test_an_upload_the_registry_forgot_is_begun_anew(registry: FakeRegistry, remote: Remote) -> None:
    descriptor = describe(BLOB, CONFIG)
    registry.drop_after = [16_000] + [0] * 20
    with pytest.raises(SourceError):
        remote.upload(BLOB, descriptor, Silent())
    registry.drop_after = []
    registry.uploads.clear()
    heard = Heard()
    remote.upload(BLOB, descriptor, heard)
    assert registry.blobs[descriptor.digest] == BLOB
    assert heard.last == (len(BLOB), len(BLOB))


@pytest.mark.usefixtures("small_chunks")
def test_a_registry_that_loses_every_upload_is_not_asked_for_ever(registry: FakeRegistry, remote: Remote) -> None:
    def forget(request: Request) -> None:
        if request.method == "PUT":
            registry.uploads.clear()

    registry.before = forget
    heard = Heard()
    with pytest.raises(SourceError, match="keeps losing the upload"):
        remote.upload(BLOB, describe(BLOB, CONFIG), heard)
    assert heard.last[0] == 0
    assert [method for method, _ in registry.asked].count("POST") == 5


def test_a_busy_registry_is_asked_again(registry: FakeRegistry, remote: Remote) -> None:
    busy = [503, 429, 502]
    registry.before = lambda request: Response(status=busy.pop()) if busy and request.method == "PUT" else None
    remote.upload(BLOB, describe(BLOB, CONFIG), Silent())
    assert remote.has(describe(BLOB, CONFIG).digest)


def test_bytes_that_changed_on_the_way_are_told(registry: FakeRegistry, remote: Remote) -> None:
    other = describe(BLOB + b"x", CONFIG)
    with pytest.raises(IntegrityError, match="are others") as caught:
        remote.upload(BLOB[:-1] + b"xy", other, Silent())
    assert "DIGEST_INVALID" in str(caught.value.detail)
    assert registry.blobs == {}


def test_a_blob_cut_short_here_is_told_before_it_goes(remote: Remote) -> None:
    with pytest.raises(IntegrityError, match="is shorter than"):
        remote.upload(BLOB[:-1], describe(BLOB, CONFIG), Silent())


def test_a_registry_that_stored_something_else_is_told(registry: FakeRegistry, remote: Remote) -> None:
    lie = {"Docker-Content-Digest": f"sha256:{'e' * 64}"}
    registry.before = lambda request: Response(status=201, headers=lie) if request.method == "PUT" else None
    with pytest.raises(IntegrityError, match="stored other bytes"):
        remote.upload(BLOB, describe(BLOB, CONFIG), Silent())
    with pytest.raises(IntegrityError, match="stored other bytes"):
        remote.put_manifest(b"{}", MANIFEST, "1")


def test_manifests_by_tag_and_digest(remote: Remote) -> None:
    body = canonical({"schemaVersion": 2})
    digest = remote.put_manifest(body, MANIFEST, "1")
    assert remote.manifest("1") == remote.manifest(digest) == (body, MANIFEST)
    with pytest.raises(NotServedError):
        remote.manifest("2")


def test_a_manifest_without_end_is_not_read_to_it(registry: FakeRegistry, remote: Remote) -> None:
    registry.before = lambda request: Response((b"x" * 65536 for _ in range(10_000)), content_type=MANIFEST)
    with pytest.raises(IntegrityError, match="sends more than"):
        remote.manifest("1")


@pytest.mark.parametrize("body", [BLOB[:-1] + b"x", BLOB + b"x"])
def test_a_document_with_other_bytes_is_refused(registry: FakeRegistry, remote: Remote, body: bytes) -> None:
    descriptor = describe(BLOB, CONFIG)
    registry.blobs[descriptor.digest] = body
    with pytest.raises(IntegrityError):
        remote.read(descriptor)


def artifact(kind: str) -> bytes:
    empty = describe(b"{}", EMPTY).to_dict()
    parts = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": kind, "config": empty, "layers": [empty]}
    return canonical({**parts, "subject": SUBJECT.to_dict()})


@pytest.mark.parametrize("api", [True, False])
def test_what_refers_to_an_image(registry: FakeRegistry, remote: Remote, api: bool) -> None:
    registry.referrers_api = api
    assert remote.referrers(SUBJECT.digest) == []
    sbom, signature = artifact("application/spdx+json"), artifact("application/vnd.example.signature")
    digests = [remote.attach(body, SUBJECT) for body in (sbom, signature, sbom)]
    found = remote.referrers(SUBJECT.digest)
    assert {d.digest for d in found} == set(digests)
    assert {d.artifact_type for d in found} == {"application/spdx+json", "application/vnd.example.signature"}
    assert remote.manifest(digests[0])[0] == sbom
    assert (f"sha256-{SUBJECT.hex}" in registry.manifests) is not api


def test_only_what_names_the_image_is_attached(remote: Remote) -> None:
    with pytest.raises(ValueError, match="subject"):
        remote.attach(artifact("a/b"), describe(b"other", MANIFEST))


@pytest.mark.parametrize("tokens", [True, False])
def test_the_clients_own_login_is_used(host: Path, registry: FakeRegistry, remote: Remote, tokens: bool) -> None:
    registry.user, registry.password, registry.tokens = "me", "secret", tokens
    log_in(host, registry, "secret")
    descriptor = describe(BLOB, CONFIG)
    assert not remote.has(descriptor.digest)
    remote.upload(BLOB, descriptor, Silent())
    remote.put_manifest(b"{}", MANIFEST, "1")
    assert remote.manifest("1")[0] == b"{}"
    assert registry.blobs[descriptor.digest] == BLOB
    if tokens:
        assert registry.issued == 1
        asked = next(path for method, path in registry.asked if path.startswith("/token"))
        assert "scope=repository%3Ateam%2Fstack%3Apull%2Cpush" in asked


@pytest.mark.usefixtures("small_chunks")
def test_a_token_that_runs_out_amid_an_upload_is_replaced(host: Path, registry: FakeRegistry, remote: Remote) -> None:
    registry.user, registry.password, registry.tokens = "me", "secret", True
    log_in(host, registry, "secret")
    seen = []

    def expire(request: Request) -> None:
        seen.append(request.method)
        if request.method == "PATCH" and seen.count("PATCH") == 3:
            registry.issued += 1

    registry.before = expire
    remote.upload(BLOB, describe(BLOB, CONFIG), Silent())
    assert registry.blobs[describe(BLOB, CONFIG).digest] == BLOB
    assert registry.issued == 3


@pytest.mark.parametrize("tokens", [True, False])
@pytest.mark.parametrize(
    "do",
    [
        lambda remote: remote.has(SUBJECT.digest),
        lambda remote: remote.upload(BLOB, describe(BLOB, CONFIG), Silent()),
        lambda remote: remote.manifest("1"),
    ],
)
def test_an_expired_login_names_the_command(
    host: Path, registry: FakeRegistry, remote: Remote, tokens: bool, do: Callable[[Remote], object]
) -> None:
    registry.user, registry.password, registry.tokens = "me", "new secret", tokens
    log_in(host, registry, "old secret")
    with pytest.raises(SourceError, match="refuses the login of 'me'") as caught:
        do(remote)
    assert caught.value.cure == f"Log in again, then run it again: docker login {registry.host}"
    assert "old secret" not in f"{caught.value.message}{caught.value.detail}"


@pytest.mark.parametrize("tokens", [True, False])
def test_without_a_login_the_command_is_named(registry: FakeRegistry, remote: Remote, tokens: bool) -> None:
    registry.user, registry.password, registry.tokens = "me", "secret", tokens
    with pytest.raises(SourceError, match="wants a login") as caught:
        remote.has(SUBJECT.digest)
    assert f"login {registry.host}" in str(caught.value.cure)


def test_a_clock_that_is_off_is_told_with_the_refusal(
    host: Path, registry: FakeRegistry, remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Slow":
            return cls(2015, 1, 1, tzinfo=tz)

    monkeypatch.setattr(answers, "datetime", Slow)
    log_in(host, registry, "old secret")
    registry.user, registry.password = "me", "new secret"
    with pytest.raises(SourceError) as caught:
        remote.has(SUBJECT.digest)
    assert "this host's clock says 2015-01-01 00:00 UTC, the registry's 20" in str(caught.value.detail)


def test_a_password_is_not_sent_unencrypted(host: Path, registry: FakeRegistry, remote: Remote) -> None:
    log_in(host, registry, "secret")
    said = {"WWW-Authenticate": 'Bearer realm="http://tokens.example/token",service="s"'}
    registry.before = lambda request: Response(status=401, headers=said)
    with pytest.raises(SourceError, match="unencrypted"):
        remote.has(SUBJECT.digest)


@pytest.mark.parametrize("status", [403, 404, 405, 400])
def test_no_permission_to_push(registry: FakeRegistry, remote: Remote, status: int) -> None:
    registry.before = lambda request: Response(status=status)
    with pytest.raises(SourceError) as caught:
        remote.upload(BLOB, describe(BLOB, CONFIG), Silent())
    assert caught.value.cure


@pytest.mark.parametrize("body", ["[" * 5_000, '{"errors": 1}', "null"])
def test_a_refusal_in_no_form_of_the_protocols_is_told_without_its_words(
    registry: FakeRegistry, remote: Remote, body: str
) -> None:
    registry.before = lambda request: Response(body, status=403)
    with pytest.raises(SourceError) as caught:
        remote.upload(BLOB, describe(BLOB, CONFIG), Silent())
    assert not caught.value.detail


def test_a_web_page_is_no_registry(registry: FakeRegistry, remote: Remote) -> None:
    registry.before = lambda request: Response("<html>log in", content_type="text/html")
    with pytest.raises(IntegrityError, match="login page"):
        remote.manifest("1")
    with pytest.raises(SourceError, match="it answers 200"):
        remote.upload(BLOB, describe(BLOB, CONFIG), Silent())


def test_nobody_there() -> None:
    remote = Remote.open("127.0.0.1:1/team/stack:1")
    with pytest.raises(SourceError, match="does not answer"):
        remote.has(SUBJECT.digest)
