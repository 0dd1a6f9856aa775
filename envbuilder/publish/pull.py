"""An image out of a registry into an engine: by digest, each byte verified, nothing named before all of it is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from envbuilder import data
from envbuilder.errors import EnvbuilderError, InputError, IntegrityError, SourceError
from envbuilder.fetch.cache import check_space, is_there, path_of
from envbuilder.fetch.download import Location
from envbuilder.fetch.transfers import fetch_items
from envbuilder.files import write_bytes
from envbuilder.image.alone import alone
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.registry import INDEX_TYPES, manifest_for_amd64
from envbuilder.publish.attaching import keep_attached
from envbuilder.publish.export import layout_of, parts_of
from envbuilder.publish.installing import check_fits, install, name_for, present, unpacked_sizes
from envbuilder.publish.layout import Descriptor, describe, read_manifest
from envbuilder.publish.packing import item_of
from envbuilder.publish.remote import Remote
from envbuilder.report.progress import Progress

_CONFIG_LIMIT = 16 * 1024 * 1024
_MAX_LAYERS = 512
_LAYERS = ("application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar")
_GONE = "Images do vanish. Ask whoever pushed it, or take it from an archive: envbuilder load."

# Told of the image's manifest, and where it may come from, before anything else of it is fetched; who signed it. It
# raises when the image may not come in.
Admit = Callable[[Sequence[Remote], Descriptor], tuple[str, ...]]


def admit_all(remotes: Sequence[Remote], manifest: Descriptor) -> tuple[str, ...]:
    """Let in every image whose digest is right."""
    return ()


@dataclass(frozen=True)
class Pulled:
    """What a pull came to: ``moved`` bytes came, ``name`` is what the engine calls the image, ``id`` its
    configuration's digest.

    ``signed_by`` says whose signatures the policy of this host asked for and got.
    """

    name: str
    pinned: str
    digest: str
    id: str
    image: ImageInfo
    moved: int
    size: int
    anew: bool
    signed_by: tuple[str, ...] = ()


def digest_now(reference: str, mirrors: Mirrors) -> str:
    """The digest that the tag of ``reference`` points to now."""
    remotes = Remote.mirrored(reference, mirrors)
    body, kind = _first(remotes, lambda remote: remote.manifest(remote.name.tag))
    return describe(body, kind).digest


def check_pinned(reference: str, mirrors: Mirrors) -> None:
    """Raise InputError for a reference by tag; it names the digest the tag has now."""
    name = Remote.open(reference).name
    if name.digest:
        return
    pinned = f"{name.host}/{name.repository}@{digest_now(reference, mirrors)}"
    raise InputError(
        f"{reference} is a tag, which anybody who may push can point to another image at any time",
        cure=f"Pull the image it is now: envbuilder pull {pinned}\n    or take whatever it is: --allow-tag",
    )


def pull(reference: str, engine: Engine, mirrors: Mirrors, progress: Progress, admit: Admit = admit_all) -> Pulled:
    """Have the image ``reference`` names in the engine; a tag is taken for what it points to now.

    Raises SourceError when no registry serves it, IntegrityError when one serves other bytes, HostError when it
    cannot be stored, and whatever ``admit`` raises. In every case the engine is as it was before.
    """
    remotes = Remote.mirrored(reference, mirrors)
    digest = remotes[-1].name.digest or digest_now(reference, mirrors)
    with alone(data.cache_root() / "locks" / f"pull-{digest.removeprefix('sha256:')}", "another pull of it", progress):
        manifest, body = _manifest(remotes, digest)
        config, layers = parts_of(read_manifest(body))
        _check_parts(config, layers)
        signed_by = admit(remotes, manifest)
        moved = _fetch((config,), remotes, progress)
        name = name_for(path_of(item_of(config)).read_bytes(), remotes[-1].name, digest)
        size = config.size + sum(layer.size for layer in layers)
        pinned = remotes[-1].pinned(digest)
        if there := present(engine, (config.digest, manifest.digest), name, progress):
            return Pulled(name, pinned, digest, config.digest, there, moved, size, False, signed_by)
        check_fits(engine, unpacked_sizes(layers))
        moved += _fetch(layers, remotes, progress)
        image = install(engine, manifest, config, layers, name, progress)
        _keep_documents(remotes, manifest.digest, image, progress)
    return Pulled(name, pinned, digest, config.digest, image, moved, size, True, signed_by)


def _keep_documents(remotes: list[Remote], digest: str, image: ImageInfo, progress: Progress) -> None:
    """What is attached to the image goes on with it from here; the image is right without it, so no fault stops it."""
    for remote in remotes:
        try:
            if keep_attached(remote, digest, layout_of(image)):
                return
        except EnvbuilderError as error:
            progress.log(f"documents of the image were not kept: {error.message}")


def _manifest(remotes: list[Remote], digest: str) -> tuple[Descriptor, bytes]:
    """The manifest of ``digest``, or of its variant for amd64; out of the cache where it is there."""
    body, kind = _document(remotes, digest)
    if kind in INDEX_TYPES or "manifests" in read_manifest(body):
        body, kind = _document(remotes, manifest_for_amd64(body))
    return describe(body, kind), body


def _document(remotes: list[Remote], digest: str) -> tuple[bytes, str]:
    path = path_of(item_of(Descriptor("", digest, 0)))
    if path.is_file():
        body = path.read_bytes()
        kind = str(read_manifest(body).get("mediaType", ""))
        if kind and describe(body, kind).digest == digest:
            return body, kind
    body, kind = _first(remotes, lambda remote: remote.manifest(digest))
    write_bytes(path, body)
    return body, kind


def _first(remotes: list[Remote], ask: Callable[[Remote], tuple[bytes, str]]) -> tuple[bytes, str]:
    """What the first of the hosts that has it says. With none, what the registry itself said."""
    *mirrors, registry = remotes
    said: list[str] = []
    for remote in mirrors:
        try:
            return ask(remote)
        except (SourceError, IntegrityError) as error:
            said.append(error.message)
    try:
        return ask(registry)
    except EnvbuilderError as error:
        error.detail = "\n".join([*said, *([error.detail] if error.detail else [])]) or None
        raise


def _check_parts(config: Descriptor, layers: tuple[Descriptor, ...]) -> None:
    """What a manifest may say: bounds that no image of a stack comes near."""
    if config.size > _CONFIG_LIMIT or len(layers) > _MAX_LAYERS or not layers:
        raise IntegrityError(
            f"no image is like that: {len(layers)} layers, and a configuration of {config.size} bytes",
            cure="Nothing of it was fetched. Ask whoever pushed it.",
        )
    if wrong := next((layer for layer in layers if not layer.media_type.startswith(_LAYERS)), None):
        raise IntegrityError(
            f"a layer of it is {wrong.media_type!r}, not a file system: it is an artifact, no image",
            cure="Nothing of it was fetched. Pull the digest of the image.",
        )


def _fetch(blobs: tuple[Descriptor, ...], remotes: list[Remote], progress: Progress) -> int:
    """Have the blobs in the cache; the bytes that came."""
    items = {blob.hex: item_of(blob) for blob in blobs if not is_there(item_of(blob))}
    if not items:
        return 0
    check_space(list(items.values()))
    return fetch_items(
        list(items.values()), {key: _location(remotes, item.digest) for key, item in items.items()}, progress
    )


def _location(remotes: list[Remote], digest: str) -> Location:
    first, *others = remotes
    then = (_location(others, digest),) if others else ()
    return Location(first.blob_url(digest), first.session, _GONE, then)
