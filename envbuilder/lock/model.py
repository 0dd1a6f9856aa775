"""A lock: every artifact of a stack by name, version, SHA-256 and size. No address of a mirror stands in it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envbuilder.stack.fields import Strict

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# The folder a file is cached and fetched under is made of these names, so they hold no slash and no leading dot.
Filename = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+~%:-]*$")]
# conda's names may begin with an underscore, and versions may hold an epoch.
CondaFilename = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._+!-]*\.(?:conda|tar\.bz2)$")]


class PythonArtifact(Strict):
    """One wheel or sdist: the very file that is installed. ``size`` in bytes, None where the index does not say."""

    name: str
    version: str
    filename: Filename
    sha256: Sha256
    size: int | None
    index: str | None = Field(None, description="Name of the index; None is the client's default index.")
    group: str | None = None

    @property
    def is_sdist(self) -> bool:
        """Whether the file must be built before it is installed."""
        return not self.filename.endswith(".whl")


class DebArtifact(Strict):
    """One Debian binary package. ``size`` in bytes. ``target`` is the image target that first needs it.

    ``path`` is the file's place below the root of every mirror of the archive that ``suite`` belongs to.
    """

    name: str
    version: str
    architecture: Literal["amd64", "all"]
    suite: str
    component: str
    path: Annotated[str, Field(pattern=r"^pool/(?:[A-Za-z0-9][A-Za-z0-9._+~-]*/)+[A-Za-z0-9][A-Za-z0-9._+~-]*\.deb$")]
    sha256: Sha256
    size: int
    target: Literal["runtime", "devel"]

    @property
    def filename(self) -> str:
        """The file's name as apt caches it: the epoch's colon is escaped."""
        return f"{self.name}_{self.version.replace(':', '%3a')}_{self.architecture}.deb"


class DebianBase(Strict):
    """The Debian packages of a lock. ``release`` is the point release of ``suite`` (say 12.15) that was read.

    ``security`` tells whether the security archive was read too.
    """

    suite: str
    release: str
    security: bool
    packages: tuple[DebArtifact, ...]


class CondaArtifact(Strict):
    """One conda package. Records of the label channel may have no SHA-256; then the MD5 is what there is."""

    name: str
    version: str
    build: str
    filename: CondaFilename
    url: str
    md5: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
    sha256: Sha256 | None
    size: int | None


class GitArtifact(Strict):
    """A source tree at one commit."""

    name: str
    repository: str
    tag: str
    commit: Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]


class BaseImage(Strict):
    """An image out of a registry, by digest. ``target`` is the build stage that starts from it.

    ``installer`` is the image whose program unpacks the conda half.
    """

    target: Literal["devel", "runtime", "installer"]
    reference: str
    digest: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class Reference(Strict):
    """A file that belongs to a stack and that no build step fetches; for checking what somebody downloaded."""

    name: str
    url: str | None = None
    sha256: Sha256
    size: int | None = None
    source: str


class Lock(Strict):
    """All of a stack's lock files, read and checked. ``digest`` is ``sha256:...`` over all of them."""

    stack: str
    digest: str
    python: tuple[PythonArtifact, ...]
    debian: DebianBase | None = None
    conda: tuple[CondaArtifact, ...] = ()
    git: tuple[GitArtifact, ...] = ()
    images: tuple[BaseImage, ...] = ()
    references: tuple[Reference, ...] = ()

    @property
    def debs(self) -> tuple[DebArtifact, ...]:
        """The Debian packages of all targets; empty when the base is an image."""
        return self.debian.packages if self.debian else ()
