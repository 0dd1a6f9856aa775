import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from envbuilder.errors import IntegrityError
from envbuilder.publish.layout import CONFIG, MANIFEST, NAME, Descriptor, Layout, canonical, describe, read_manifest

DIGEST = f"sha256:{'a' * 64}"


def test_what_is_added_lies_at_its_digest(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    descriptor = layout.add(b'{"a":1}', CONFIG)
    assert descriptor.hex == hashlib.sha256(b'{"a":1}').hexdigest()
    assert layout.path(descriptor.digest).read_bytes() == b'{"a":1}'
    assert layout.manifest(descriptor.digest) == {"a": 1}
    assert layout.add(b'{"a":1}', CONFIG) == descriptor


def test_tags_are_kept_and_moved(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert layout.index() == []
    first, second = layout.add(b"{}", MANIFEST), layout.add(b'{"b":2}', MANIFEST)
    layout.tag(first, "one")
    layout.tag(second, "two")
    assert [(d.digest, d.annotations[NAME]) for d in layout.index()] == [(first.digest, "one"), (second.digest, "two")]
    layout.tag(second, "one")
    assert [(d.digest, d.annotations[NAME]) for d in layout.index()] == [(second.digest, "one")]
    assert json.loads((tmp_path / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}


def test_a_linked_blob_costs_nothing(tmp_path: Path) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"layer")
    layout = Layout(tmp_path / "layout")
    layout.link(source, DIGEST)
    layout.link(source, DIGEST)
    assert layout.path(DIGEST).samefile(source)


def test_descriptors_come_back_as_they_were() -> None:
    full = Descriptor(MANIFEST, DIGEST, 7, {"a": "b"}, "application/spdx+json")
    assert Descriptor.from_dict(full.to_dict()) == full
    bare = Descriptor(MANIFEST, DIGEST, 7)
    assert bare.to_dict() == {"mediaType": MANIFEST, "digest": DIGEST, "size": 7}
    assert Descriptor.from_dict(bare.to_dict()) == bare


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"mediaType": MANIFEST, "digest": "sha256:../../etc/passwd", "size": 1},
        {"mediaType": MANIFEST, "digest": DIGEST, "size": -1},
        {"mediaType": MANIFEST, "digest": DIGEST, "size": "many"},
        {"mediaType": MANIFEST, "digest": DIGEST, "size": 1, "annotations": ["x"]},
        {"mediaType": MANIFEST, "digest": f"sha512:{'a' * 64}", "size": 1},
    ],
)
def test_what_is_no_descriptor_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(IntegrityError):
        Descriptor.from_dict(data)


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../../etc/passwd", f"sha256:{'A' * 64}", "x" * 71])
def test_no_path_leads_out_of_a_layout(tmp_path: Path, digest: str) -> None:
    with pytest.raises(IntegrityError):
        Layout(tmp_path).path(digest)


def test_a_manifest_with_other_bytes_is_refused(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    descriptor = layout.add(b"{}", MANIFEST)
    layout.path(descriptor.digest).write_bytes(b'{"x":1}')
    with pytest.raises(IntegrityError, match="bytes of the manifest"):
        layout.manifest(descriptor.digest)
    layout.path(descriptor.digest).unlink()
    with pytest.raises(IntegrityError, match="missing"):
        layout.manifest(descriptor.digest)


@pytest.mark.parametrize("body", [b"", b"[]", b"<html>", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(body: bytes) -> None:
    with pytest.raises(IntegrityError):
        read_manifest(body)


def test_the_same_content_gives_the_same_bytes() -> None:
    assert canonical({"b": 1, "a": "ü"}) == canonical({"a": "ü", "b": 1}) == '{"a":"ü","b":1}'.encode()
    assert describe(b"", CONFIG).size == 0
