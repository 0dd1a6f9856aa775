"""Reading an archive of an image: all of it is held against its digests; what does not belong in it is refused."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard
from isal import igzip

from envbuilder.errors import HostError, InputError, IntegrityError, Place
from envbuilder.fetch.transfers import Counter
from envbuilder.image.archives import UNPACKED_SIZE, about_unpacked, blob, unpacked_stream
from envbuilder.publish.export import parts_of
from envbuilder.publish.installing import diff_ids_of, stack_name
from envbuilder.publish.layout import (
    MANIFEST,
    Descriptor,
    canonical,
    describe,
    describe_artifact,
    read_manifest,
)
from envbuilder.report.progress import Progress

ABOUT = "envbuilder.json"
SCHEMA = 1
_CHUNK = 1024 * 1024
_PLAIN = {ABOUT, "oci-layout", "index.json", "manifest.json"}
_BLOB = re.compile(r"blobs/sha256/([0-9a-f]{64})")
# Configurations, manifests and documents are kept in memory; layers are larger, and are not.
_TEXT_LIMIT = 64 * 1024 * 1024
_TEXTS_LIMIT = 256 * 1024 * 1024
_MAX_MEMBERS = 2048


@dataclass(frozen=True)
class Content:
    """What a whole archive holds.

    ``published`` is the manifest it is published under, ``unpacked`` that over its unpacked layers, which are
    ``layers``: digest and size. ``documents`` are the published manifest and what is attached to it, by the name of
    the file; ``referrers`` are the manifests of what is attached.
    """

    published: Descriptor
    config: Descriptor
    unpacked: str
    name: str
    layers: tuple[tuple[str, int], ...]
    referrers: tuple[Descriptor, ...]
    documents: dict[str, bytes]

    @property
    def ids(self) -> tuple[str, ...]:
        """What an engine may take for the image's id."""
        return (self.config.digest, self.unpacked, self.published.digest)


def read_archive(path: Path, progress: Progress) -> Content:
    """Read an archive, packed with gzip or zstd or not, to its end.

    Raises InputError for what is no archive that ``save`` wrote, IntegrityError where its bytes are not what it says.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            size = path.stat().st_size
            progress.stage(f"verifying {path.name}, {size / 1e9:.2f} GB")
            source = unpacked_stream(stream, Counter(progress, size).add)
            with tarfile.open(fileobj=source, mode="r|", bufsize=_CHUNK) as tar:
                reading = _Reading(path)
                for member in tar:
                    tar.members = []  # type: ignore[attr-defined]  # it would keep every header it has passed
                    reading.take(tar, member)
                return reading.content()
    except FileNotFoundError:
        raise InputError("there is no such file", place=Place(str(path))) from None
    except (tarfile.TarError, EOFError, zstandard.ZstdError, igzip.BadGzipFile, UnicodeError) as error:
        raise InputError(
            f"this is no archive of an image, or one that was cut short: {error}",
            place=Place(str(path)),
            cure="Copy it again; `sha256sum` on both hosts shows whether it came whole.",
        ) from None
    except OSError as error:
        raise HostError(
            f"the archive cannot be read: {error.strerror}",
            place=Place(str(path)),
            cure="Name another file, or one that you may read.",
        ) from error


def about_of(published: bytes, referrers: Sequence[bytes]) -> bytes:
    """``envbuilder.json``: what the manifest ``published`` and the manifests attached to it are."""
    return canonical(
        {
            "schema": SCHEMA,
            "published": describe(published, MANIFEST).to_dict(),
            "referrers": [describe_artifact(body).to_dict() for body in referrers],
        }
    )


class _Reading:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}
        self._texts: dict[str, bytes] = {}
        self._kept = 0

    def take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        """One file: hashed where its name is a digest, kept where it is small."""
        name = member.name
        if not self._sizes and name != ABOUT:
            raise self._foreign(f"its first file is not {ABOUT}")
        found = _BLOB.fullmatch(name)
        source = tar.extractfile(member) if member.isreg() else None
        if source is None or not (found or name in _PLAIN) or name in self._sizes or len(self._sizes) == _MAX_MEMBERS:
            raise self._hostile(f"{name!r} does not belong in it")
        small = member.size <= _TEXT_LIMIT and self._kept + member.size <= _TEXTS_LIMIT
        if not (small or found):
            raise self._hostile(f"{name} is {member.size} bytes")
        kept, hasher, size = [], hashlib.sha256(), 0
        while chunk := source.read(_CHUNK):
            size += len(chunk)
            hasher.update(chunk)
            if small:
                kept.append(chunk)
        if found and hasher.hexdigest() != found[1]:
            raise self._hostile(f"the bytes of {name} are not those of its name")
        self._sizes[name] = size
        # Layers are kept too while they are small; what is not named as a document is dropped in the end.
        if small:
            self._texts[name] = b"".join(kept)
            self._kept += size

    def content(self) -> Content:
        """What it holds, now that all of it was read."""
        about = read_manifest(self._text(ABOUT))
        if about.get("schema") != SCHEMA:
            raise self._foreign(f"it has schema {about.get('schema')}, this envbuilder reads {SCHEMA}")
        published = Descriptor.from_dict(_mapping(about.get("published")))
        config, packed = parts_of(read_manifest(self._text(blob(published.digest))))
        body = self._text(blob(config.digest))
        layers = tuple((digest, self._size(blob(digest))) for digest in diff_ids_of(body))
        told = [layer.annotations.get(UNPACKED_SIZE) for layer in packed]
        if len(told) != len(layers) or any(t not in (None, str(s)) for t, (_, s) in zip(told, layers, strict=True)):
            raise self._hostile("its layers are not those of the manifest it is published under")
        name = stack_name(body)
        if not name:
            raise self._foreign("its image is none of a stack")
        expected = about_unpacked(config.to_dict(), layers, [name])
        for member in expected:
            # What the engine is told is what was verified, and nothing else.
            if self._text(member.name) != b"".join(member.chunks()):
                raise self._hostile(f"{member.name} names something else than the archive holds")
        referrers, documents = self._attached(about, published)
        manifests = [self._text(blob(entry.digest)) for entry in (published, *referrers)]
        if self._text(ABOUT) != about_of(manifests[0], manifests[1:]):
            raise self._hostile(f"{ABOUT} says something else than the archive holds")
        known = {*_PLAIN, *documents, *(m.name for m in expected), *(blob(d) for d, _ in layers), blob(config.digest)}
        if strangers := sorted(set(self._sizes) - known):
            raise self._hostile(f"nothing names {strangers[0]}")
        unpacked = f"sha256:{expected[-1].name.rpartition('/')[2]}"
        texts = {document: self._text(document) for document in documents}
        return Content(published, config, unpacked, name, layers, referrers, texts)

    def _attached(self, about: dict[str, Any], published: Descriptor) -> tuple[tuple[Descriptor, ...], list[str]]:
        entries = about.get("referrers")
        if not isinstance(entries, list):
            raise self._hostile("it does not say what is attached")
        referrers = tuple(Descriptor.from_dict(_mapping(entry)) for entry in entries)
        documents = [blob(published.digest)]
        for entry in referrers:
            manifest = read_manifest(self._text(blob(entry.digest)))
            if _mapping(manifest.get("subject")).get("digest") != published.digest:
                raise self._hostile(f"{entry.digest} is attached to another image")
            config, layers = parts_of(manifest)
            documents += [blob(part.digest) for part in (entry, config, *layers)]
        return referrers, list(dict.fromkeys(documents))

    def _text(self, name: str) -> bytes:
        if name not in self._texts:
            raise self._hostile(f"{name} is missing")
        return self._texts[name]

    def _size(self, name: str) -> int:
        if name not in self._sizes:
            raise self._hostile(f"{name} is missing")
        return self._sizes[name]

    def _hostile(self, what: str) -> IntegrityError:
        return IntegrityError(
            f"the archive is damaged or hostile: {what}",
            place=Place(str(self._path)),
            cure="No engine has seen anything of it. Copy it again from where it was made.",
        )

    def _foreign(self, why: str) -> InputError:
        return InputError(
            f"this archive was not written by envbuilder save: {why}",
            place=Place(str(self._path)),
            cure="What docker save wrote, docker load takes.",
        )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
