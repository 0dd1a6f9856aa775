"""Tags of container images that are known to exist (``images.toml``)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.stack.fields import Strict, load_model


class KnownTag(Strict):
    """A tag whose digest was seen."""

    tag: str
    source: str = Field(min_length=8)


class CudaImages(Strict):
    """CUDA images of some releases: the cuDNN word of their tags and the distributions they were made for."""

    release: tuple[str, ...]
    cudnn: str
    distros: tuple[str, ...]
    source: str = Field(min_length=8)


class ImageTable(Strict):
    """The table."""

    schema_: Literal[1] = Field(alias="schema")
    known: tuple[KnownTag, ...]
    cuda: tuple[CudaImages, ...]


@lru_cache(maxsize=1)
def images() -> ImageTable:
    """The whole table."""
    return load_model(ImageTable, Path(__file__).with_name("images.toml"))


def cuda_images(release: str) -> CudaImages | None:
    """The row of an exact release (``11.8.0``); None where nothing is known."""
    return next((row for row in images().cuda if release in row.release), None)


def full_releases(short: str) -> list[str]:
    """The full releases (``11.8.0``) of a two-part number (``11.8``)."""
    return [r for row in images().cuda for r in row.release if r.startswith(f"{short}.")]
