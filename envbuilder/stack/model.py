"""The stack: what is wanted. ``stacks/NAME.toml`` holds no address of a mirror and no hash."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Literal

from pydantic import Field

from envbuilder.stack.fields import Strict

Version = Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+!_-]*$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$")]


class Pin(Strict):
    """A package at one version, why it is that one, and what is commonly believed of it and wrong."""

    version: Version
    why: str
    source: str = ""
    believed: str = Field("", description="A common belief that is wrong, with what is so.")
    index: Name | None = Field(None, description="The name of the index it comes from; the default index otherwise.")
    group: Name | None = Field(None, description="An optional group, left out unless asked for.")


class PythonPart(Strict):
    """The Python half: an interpreter, direct requirements, the upload cut-off."""

    version: Annotated[str, Field(pattern=r"^3\.\d+(\.\d+)?$")]
    cutoff: date = Field(description="Files uploaded on or after this day are not considered.")
    packages: dict[Name, Pin]


class DebianPart(Strict):
    """A base made of Debian packages."""

    suite: Name
    point_release: str
    why: str
    components: tuple[Name, ...] = ("main",)
    packages: tuple[Name, ...]
    devel: tuple[Name, ...] = Field((), description="What the devel target adds.")
    devel_components: tuple[Name, ...] = ()
    devel_exclude: tuple[str, ...] = Field((), description="dpkg path-exclude patterns of the devel target.")
    devel_include: tuple[str, ...] = Field((), description="dpkg path-include patterns of the devel target.")


class ImagePart(Strict):
    """Base images out of a registry, by tag; their digests stand in the lock."""

    devel: str
    runtime: str
    why: str


class CondaPart(Strict):
    """The conda half: channels in order of priority, virtual packages, pins."""

    channels: tuple[str, ...]
    virtual_packages: dict[str, str]
    packages: dict[Name, Pin]


class CudaPart(Strict):
    """CUDA as the stack sees it: what the wheels run on, what compiles, the least driver."""

    runtime: str = Field(description="CUDA of the wheels, major.minor.")
    toolkit: str = Field(description="The release of nvcc that builds sources.")
    host_compiler: str
    minimum_driver: str
    why: str
    source: str


class SourcePart(Strict):
    """A source build at one commit."""

    repository: str
    tag: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
    build_flags: tuple[str, ...]
    environment: dict[str, str] = Field(default_factory=dict)
    why: str
    source: str
    believed: str = ""


class Compute(Strict):
    """How models compute on the card: dtype and attention, everywhere the same."""

    dtype: Literal["float32", "float16", "bfloat16"]
    attention: Literal["eager", "sdpa", "flash_attention_2"]
    compile: bool = Field(description="Whether torch.compile is used; it needs Triton.")
    why: str


class Stack(Strict):
    """A stack. Loading checks it against its card: see ``envbuilder.stack.loading``."""

    schema_: Literal[1] = Field(alias="schema")
    name: Name
    title: str
    gpu: Name
    source_date_epoch: int = Field(description="Seconds since 1970; every file of the image bears this time.")
    differs: tuple[str, ...] = Field((), description="What differs from the stack it stands in for, in sentences.")
    debian: DebianPart | None = None
    image: ImagePart | None = None
    conda: CondaPart | None = None
    python: PythonPart
    cuda: CudaPart
    compute: Compute
    sources: dict[Name, SourcePart] = Field(default_factory=dict)
