"""The digests of base images: recorded ones first, else asked of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from envbuilder.errors import SourceError
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import BaseImage
from envbuilder.stack.fields import Strict, load_model
from envbuilder.stack.model import Stack

_DATA = Path(__file__).with_name("images.toml")
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class RecordedImage(Strict):
    """An image whose digest is known. ``amd64`` is the manifest for linux/amd64 in the index ``digest``."""

    reference: str
    digest: Digest
    amd64: Digest | None = None
    source: str


class _Data(Strict):
    installer: str
    image: tuple[RecordedImage, ...]


def recorded_images() -> dict[str, RecordedImage]:
    """The recorded images by reference."""
    return {image.reference: image for image in load_model(_Data, _DATA).image}


def wanted_images(stack: Stack) -> dict[str, str]:
    """The references of the stack's images by target; the installer's where there is a conda half."""
    if stack.image is None:
        return {}
    images = {"devel": stack.image.devel, "runtime": stack.image.runtime}
    return {**images, "installer": load_model(_Data, _DATA).installer} if stack.conda else images


def lock_images(stack: Stack, mirrors: Mirrors, *, offline: bool) -> tuple[BaseImage, ...]:
    """The stack's base images by digest.

    A recorded digest stands whatever the registry's tag has become, so that a lock does not move by itself.
    Raises SourceError when an image is neither recorded nor to be asked for.
    """
    known = recorded_images()
    found = []
    for target, reference in wanted_images(stack).items():
        if reference in known:
            digest = known[reference].digest
        elif offline:
            raise SourceError(f"no digest of {reference} is recorded", cure="Lock it without --offline.")
        else:
            from envbuilder.lock.registry import resolve_tag

            digest = resolve_tag(reference, mirrors)
        found.append(BaseImage.model_validate({"target": target, "reference": reference, "digest": digest}))
    return tuple(found)
