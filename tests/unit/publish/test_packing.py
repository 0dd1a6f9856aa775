"""Layers packed the same everywhere, and an image's export out of what an engine gives."""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from envbuilder.errors import HostError, IntegrityError
from envbuilder.fetch.cache import path_of
from envbuilder.publish.export import export
from envbuilder.publish.layout import LAYER_ZSTD
from envbuilder.publish.packing import item_of, pack, packed
from envbuilder.report.progress import Silent
from tests.unit.publish.stand_ins import StandInEngine, config_of, digest_of

# Several of the compressor's jobs long, partly compressible.
_RANDOM = random.Random(5)
LAYER = b"".join(_RANDOM.randbytes(50_000) + bytes(100_000) for _ in range(200))


def in_chunks(body: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


def test_any_number_of_cores_and_any_chunks_give_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for cores, size in ((1, 1 << 20), (2, 1 << 20), (7, 4096), (None, len(LAYER))):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        found.add(pack(digest_of(LAYER), in_chunks(LAYER, size), lambda count: None).digest)
    # What this version of the compressor gives: another one would change the digest of everything published.
    assert found == {"sha256:2f20e7bd8c9b2912fd06111244e7a174df41404b8af63e12160a067aa895139b"}


def test_a_packed_layer_is_kept_by_what_is_in_it() -> None:
    counted: list[int] = []
    assert packed(digest_of(LAYER)) is None
    layer = pack(digest_of(LAYER), in_chunks(LAYER, 1 << 20), counted.append)
    assert packed(digest_of(LAYER)) == layer
    path = path_of(item_of(layer))
    assert (digest_of(path.read_bytes()), path.stat().st_size) == (layer.digest, layer.size)
    assert layer.media_type == LAYER_ZSTD
    assert zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read() == LAYER
    assert sum(counted) == len(LAYER)
    path.unlink()
    assert packed(digest_of(LAYER)) is None


def test_a_layer_packed_by_another_compressor_is_packed_anew(tmp_path: Path) -> None:
    pack(digest_of(LAYER), [LAYER], lambda count: None)
    note = next((tmp_path / "cache" / "packed").iterdir())
    note.write_text(note.read_text().replace("level 3", "level 4"))
    assert packed(digest_of(LAYER)) is None
    note.write_text("{")
    assert packed(digest_of(LAYER)) is None


def test_a_layer_with_other_bytes_is_not_kept(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="not what the image says"):
        pack(digest_of(b"another"), [LAYER], lambda count: None)
    assert packed(digest_of(LAYER)) is None
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


def engine_with(*layers: bytes) -> StandInEngine:
    engine = StandInEngine()
    engine.make("it:1", list(layers))
    return engine


def test_an_export_costs_nothing_twice_and_a_change_only_its_own_layer() -> None:
    engine = engine_with(b"base" * 1000, b"torch" * 1000, b"verl 1")
    first = export(engine, "it:1", Silent())
    assert first.anew
    assert first.layout.path(first.config.digest).read_bytes() == config_of(
        [b"base" * 1000, b"torch" * 1000, b"verl 1"]
    )
    assert first.layout.manifest(first.digest)["config"]["digest"] == digest_of(
        config_of([b"base" * 1000, b"torch" * 1000, b"verl 1"])
    )
    assert [entry.digest for entry in first.layout.index()] == [first.digest]
    assert len(engine.read) == 3
    again = export(engine, "it:1", Silent())
    assert (again.anew, again.digest, len(engine.read)) == (False, first.digest, 3)
    changed = engine_with(b"base" * 1000, b"torch" * 1000, b"verl 2")
    second = export(changed, "it:1", Silent())
    assert changed.read == [digest_of(b"verl 2")]
    assert second.layers[:2] == first.layers[:2]
    assert second.digest != first.digest


def test_the_same_image_gives_the_same_manifest_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_with(b"base" * 1000, b"verl")
    first = export(engine, "it:1", Silent())
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "elsewhere"))
    second = export(engine, "it:1", Silent())
    assert second.anew
    assert second.manifest == first.manifest
    assert second.layout.path(second.digest).read_bytes() == first.layout.path(first.digest).read_bytes()


def test_an_export_is_made_anew_where_something_of_it_is_gone() -> None:
    engine = engine_with(b"base" * 1000, b"verl")
    first = export(engine, "it:1", Silent())
    first.layout.path(first.layers[0].digest).unlink()
    assert export(engine, "it:1", Silent()).anew
    first.layout.path(first.config.digest).write_bytes(b"{}")
    assert export(engine, "it:1", Silent()).anew
    assert first.layout.path(first.config.digest).read_bytes() == config_of([b"base" * 1000, b"verl"])


def test_no_such_image() -> None:
    engine = StandInEngine()
    with pytest.raises(HostError, match="there is no image other:1"):
        export(engine, "other:1", Silent())
