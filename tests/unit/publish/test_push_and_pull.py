"""From one host's engine through a registry into another's: whole and verified, or not at all."""

import hashlib
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from werkzeug import Request, Response

from envbuilder.errors import HostError, InputError, IntegrityError, SourceError
from envbuilder.fetch import download
from envbuilder.image.names import image_tag
from envbuilder.lock.mirrors import Mirrors
from envbuilder.publish import uploads
from envbuilder.publish.attaching import Document, attach
from envbuilder.publish.export import Exported, export, layout_of
from envbuilder.publish.layout import MANIFEST, Descriptor, canonical, describe
from envbuilder.publish.pull import Pulled, check_pinned, pull
from envbuilder.publish.push import Pushed, check_target, push
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Silent
from tests.fake_registry import FakeRegistry, digest_of
from tests.unit.publish.stand_ins import StandInEngine

LABELS = {"io.envbuilder.stack": "small", "io.envbuilder.target": "runtime"}
LAYERS = [b"base" * 50_000, random.Random(3).randbytes(300_000), b"verl 1"]
NAME = image_tag("small")


class Heard(Silent):
    def __init__(self) -> None:
        self.stages: list[str] = []
        self.last = (0, 0)

    def stage(self, title: str) -> None:
        self.stages.append(title)

    def advance(self, done: int, total: int | None = None) -> None:
        self.last = (done, total or 0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0.01)


def exported(layers: list[bytes] | None = None) -> Exported:
    engine: Any = StandInEngine()
    engine.make(NAME, layers or LAYERS, LABELS)
    return export(engine, NAME, Silent())


def pushed(registry: FakeRegistry, layers: list[bytes] | None = None, tag: str = "1") -> Pushed:
    return push(exported(layers), Remote.open(f"{registry.host}/team/small:{tag}"), Silent())


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Go to another host: its cache is empty."""
    return lambda: monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "other host"))


def pulled(reference: str, engine: Any, **more: Any) -> Pulled:
    return pull(reference, engine, more.pop("mirrors", Mirrors()), more.pop("progress", Silent()), **more)


def test_an_image_arrives_as_it_was(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    sent = pushed(registry)
    assert sent.pinned == f"{registry.host}/team/small@{sent.digest}"
    assert (sent.moved > 0, sent.skipped) == (True, 0)
    elsewhere()
    engine, heard = StandInEngine(), Heard()
    came = pulled(sent.pinned, engine, progress=heard)
    assert (came.name, came.digest, came.anew) == (NAME, sent.digest, True)
    assert came.moved == came.size == sent.moved
    assert engine.images[came.image.id][1] == LAYERS
    assert heard.stages[-1] == f"taking {NAME} into stand-in's store"
    assert engine.names == {NAME: came.image.id}


def test_a_second_push_and_a_second_pull_move_nothing(registry: FakeRegistry) -> None:
    sent = pushed(registry)
    engine = StandInEngine()
    pulled(sent.pinned, engine)
    before = len(registry.asked)
    again = pulled(sent.pinned, engine)
    assert (again.anew, again.moved, engine.loaded) == (False, 0, 1)
    assert len(registry.asked) == before, "no network was asked"
    received = registry.received
    repeated = pushed(registry)
    assert (repeated.moved, repeated.skipped, repeated.digest) == (0, sent.moved, sent.digest)
    assert registry.received == received


def test_a_change_moves_its_own_layer_both_ways(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    first = pushed(registry)
    second = pushed(registry, [*LAYERS[:2], b"verl 2"], "2")
    assert second.moved < 1000 < second.skipped
    elsewhere()
    engine = StandInEngine()
    pulled(first.pinned, engine)
    came = pulled(second.pinned, engine)
    assert came.moved == second.moved
    assert engine.images[engine.names[NAME]][1][2] == b"verl 2"


def test_what_was_pulled_travels_on_unchanged(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    sent = pushed(registry)
    elsewhere()
    engine: Any = StandInEngine()
    pulled(sent.pinned, engine)
    again = export(engine, NAME, Silent())
    assert (again.digest, again.anew, engine.read) == (sent.digest, False, [])


@pytest.mark.parametrize("harm", [None, "the document", "the list"])
def test_what_is_attached_comes_along(registry: FakeRegistry, elsewhere: Callable[[], None], harm: str | None) -> None:
    made = exported()
    remote = Remote.open(f"{registry.host}/team/small:1")
    sent = push(made, remote, Silent())
    attach(remote, Document(b"a bill", "text/plain", "application/spdx+json"), made.manifest, Silent())
    if harm == "the document":
        registry.blobs[digest_of(b"a bill")] = b"a b1ll"
    if harm == "the list":
        registry.before = lambda request: Response(status=500) if "/referrers/" in request.path else None
    elsewhere()
    engine: Any = StandInEngine()
    came = pulled(sent.pinned, engine)
    found = layout_of(came.image).referrers(sent.digest)
    assert came.anew, "the image is right without them"
    assert [entry.artifact_type for entry in found] == ([] if harm else ["application/spdx+json"])
    assert harm or layout_of(came.image).path(digest_of(b"a bill")).read_bytes() == b"a bill"


def test_a_digest_cannot_be_chosen() -> None:
    with pytest.raises(InputError, match="names a digest"):
        check_target(f"registry.example/team/small@sha256:{'a' * 64}")


def test_a_tag_is_refused_with_the_digest_it_has_now(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    sent = pushed(registry)
    with pytest.raises(InputError, match="is a tag") as caught:
        check_pinned(sent.reference, Mirrors())
    assert f"envbuilder pull {sent.pinned}\n" in str(caught.value.cure)
    check_pinned(sent.pinned, Mirrors())
    elsewhere()
    assert pulled(sent.reference, StandInEngine()).digest == sent.digest


def lie(registry: FakeRegistry, digest: str, body: bytes) -> None:
    assert digest in registry.blobs
    registry.blobs[digest] = body


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(lambda body: body[:-1] + bytes([body[-1] ^ 1]), id="other bytes"),
        pytest.param(lambda body: body[:-1], id="too short"),
        pytest.param(lambda body: body + b"x", id="too long"),
        pytest.param(lambda body: b"", id="empty"),
    ],
)
@pytest.mark.parametrize("part", [0, 1, 2, "config"])
def test_a_registry_that_lies_installs_nothing(
    registry: FakeRegistry, elsewhere: Callable[[], None], part: Any, wrong: Callable[[bytes], bytes]
) -> None:
    made = exported()
    sent = push(made, Remote.open(f"{registry.host}/team/small:1"), Silent())
    digest = made.config.digest if part == "config" else made.layers[part].digest
    lie(registry, digest, wrong(registry.blobs[digest]))
    elsewhere()
    engine = StandInEngine()
    with pytest.raises(IntegrityError) as caught:
        pulled(sent.pinned, engine)
    assert registry.host in caught.value.message
    assert (engine.images, engine.names) == ({}, {})


def test_a_blob_without_end_is_cut_off(registry: FakeRegistry, elsewhere: Callable[[], None], tmp_path: Path) -> None:
    made = exported()
    sent = push(made, Remote.open(f"{registry.host}/team/small:1"), Silent())
    given = []

    def endless() -> Any:
        while True:
            given.append(1)
            yield bytes(65536)

    def answer(request: Request) -> Response | None:
        return Response(endless()) if request.path.endswith(made.layers[0].digest) else None

    registry.before = answer
    elsewhere()
    with pytest.raises(IntegrityError, match="longer there than"):
        pulled(sent.pinned, StandInEngine())
    assert sum(p.stat().st_size for p in (tmp_path / "other host").rglob("*") if p.is_file()) < 10 * made.size


def test_another_manifest_for_the_digest_is_refused(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    sent = pushed(registry)
    other = pushed(registry, [b"evil"], "2")
    registry.manifests[sent.digest] = registry.manifests[other.digest]
    elsewhere()
    engine = StandInEngine()
    with pytest.raises(IntegrityError, match="serves other bytes"):
        pulled(sent.pinned, engine)
    assert engine.loaded == 0


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b"{",
        canonical({"schemaVersion": 2, "layers": []}),
        canonical({"schemaVersion": 2, "config": {"mediaType": "x", "digest": "../..", "size": 1}, "layers": []}),
        canonical({"config": describe(b"{}", "c").to_dict(), "layers": []}),
        canonical({"config": describe(b"{}", "c").to_dict(), "layers": [describe(b"", "text/html").to_dict()]}),
        canonical({"config": describe(b"{}", "c").to_dict(), "layers": [{"mediaType": "x"}] * 3}),
        canonical({"config": Descriptor("c", f"sha256:{'a' * 64}", 1 << 40).to_dict(), "layers": []}),
    ],
)
def test_a_hostile_manifest_is_refused(registry: FakeRegistry, elsewhere: Callable[[], None], body: bytes) -> None:
    digest = digest_of(body)
    registry.manifests[digest] = (body, MANIFEST)
    elsewhere()
    with pytest.raises(IntegrityError):
        pulled(f"{registry.host}/team/small@{digest}", StandInEngine())


@pytest.mark.parametrize(
    "config", [b"[]", b"null", b'{"rootfs":{}}', b'{"rootfs":{"diff_ids":[]},"config":{"Labels":3}}']
)
def test_a_hostile_configuration_is_refused(
    registry: FakeRegistry, elsewhere: Callable[[], None], config: bytes
) -> None:
    made = exported()
    layers = [layer.to_dict() for layer in made.layers]
    registry.blobs[digest_of(config)] = config
    body = canonical({"config": describe(config, "c").to_dict(), "layers": layers, "mediaType": MANIFEST})
    registry.manifests[digest_of(body)] = (body, MANIFEST)
    elsewhere()
    with pytest.raises(IntegrityError):
        pulled(f"{registry.host}/team/small@{digest_of(body)}", StandInEngine())


def test_a_pull_that_broke_goes_on(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    made = exported()
    sent = push(made, Remote.open(f"{registry.host}/team/small:1"), Silent())
    largest = max(made.layers, key=lambda layer: layer.size)
    ranges: list[str | None] = []

    def answer(request: Request) -> Response | None:
        if not request.path.endswith(largest.digest):
            return None
        ranges.append(request.headers.get("Range"))
        if len(ranges) > 1:
            return None
        half = registry.blobs[largest.digest][: largest.size // 2]
        return Response([half], headers={"Content-Length": str(largest.size)})

    registry.before = answer
    elsewhere()
    engine = StandInEngine()
    pulled(sent.pinned, engine)
    assert ranges == [None, f"bytes={largest.size // 2}-"]
    assert engine.loaded == 1


def test_a_mirror_is_asked_first_and_one_that_lies_does_no_harm(
    registry: FakeRegistry, elsewhere: Callable[[], None]
) -> None:
    sent = pushed(registry)
    name = "registry.example/team/small"
    elsewhere()
    mirrors = Mirrors((("registry.example", registry.host),))
    assert pulled(f"{name}@{sent.digest}", StandInEngine(), mirrors=mirrors).pinned == f"{name}@{sent.digest}"


def test_what_the_policy_refuses_is_not_fetched(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    sent = pushed(registry)
    elsewhere()
    engine = StandInEngine()
    asked: list[tuple[str, str]] = []

    def refuse(remotes: list[Remote], manifest: Descriptor) -> tuple[str, ...]:
        asked.append((remotes[-1].name.repository, manifest.digest))
        raise IntegrityError("it is not signed")

    before = len(registry.asked)
    with pytest.raises(IntegrityError, match="not signed"):
        pulled(sent.pinned, engine, admit=refuse)
    assert asked == [("team/small", sent.digest)]
    assert [path for method, path in registry.asked[before:] if "/blobs/" in path] == []


def test_an_engine_that_does_not_take_it_leaves_the_blobs_for_the_next_try(
    registry: FakeRegistry, elsewhere: Callable[[], None]
) -> None:
    sent = pushed(registry)
    elsewhere()
    engine = StandInEngine()
    engine.fault = HostError("the disk is full")
    with pytest.raises(HostError):
        pulled(sent.pinned, engine)
    assert engine.names == {}
    engine.fault = None
    again = pulled(sent.pinned, engine)
    assert (again.anew, again.moved) == (True, 0)


def test_two_pulls_of_one_image_fetch_it_once(registry: FakeRegistry, elsewhere: Callable[[], None]) -> None:
    sent = pushed(registry)
    elsewhere()
    engine = StandInEngine()
    results: list[Pulled] = []
    threads = [threading.Thread(target=lambda: results.append(pulled(sent.pinned, engine))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result.anew for result in results) == [False, False, True]
    assert engine.loaded == 1
    gets = [path for method, path in registry.asked if method == "GET" and "/blobs/" in path]
    assert len(gets) == len(set(gets)) == len(LAYERS) + 1


def test_an_image_of_no_stack_is_named_after_its_repository(
    registry: FakeRegistry, elsewhere: Callable[[], None]
) -> None:
    maker: Any = StandInEngine()
    maker.make("other:1", [b"layer"], {"io.envbuilder.stack": "../../etc"})
    sent = push(export(maker, "other:1", Silent()), Remote.open(f"{registry.host}/team/other:1"), Silent())
    elsewhere()
    came = pulled(sent.pinned, StandInEngine())
    assert came.name == f"{registry.host}/team/other:{sent.digest[7:19]}"


def test_an_image_of_another_tag_is_told(registry: FakeRegistry) -> None:
    """Somebody pushes to the same tag at the same time."""
    other = pushed(registry, [b"theirs"])
    theirs = registry.manifests[other.digest]

    def answer(request: Request) -> Response | None:
        if request.method == "GET" and request.path.endswith("/manifests/1"):
            return Response(theirs[0], content_type=theirs[1])
        return None

    registry.before = answer
    with pytest.raises(IntegrityError, match="serves another image"):
        pushed(registry)


def test_the_first_fault_stops_the_others(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploads, "_ATTEMPTS", 2)
    made = exported()
    registry.before = lambda request: Response(status=503) if request.method == "POST" else None
    with pytest.raises(SourceError, match="keeps breaking"):
        push(made, Remote.open(f"{registry.host}/team/small:1"), Silent())
    assert registry.manifests == {}


def test_progress_is_told_in_bytes(registry: FakeRegistry) -> None:
    made, heard = exported(), Heard()
    push(made, Remote.open(f"{registry.host}/team/small:1"), heard)
    total = sum(layer.size for layer in made.layers) + made.config.size
    assert heard.last == (total, total)


def test_the_manifest_says_what_each_layer_takes(registry: FakeRegistry) -> None:
    made = exported()
    layers = json.loads(made.layout.path(made.digest).read_bytes())["layers"]
    told = [int(layer["annotations"]["io.envbuilder.layer.unpacked"]) for layer in layers]
    assert told == [len(layer) for layer in LAYERS]
    assert hashlib.sha256(made.layout.path(made.digest).read_bytes()).hexdigest() == made.manifest.hex
