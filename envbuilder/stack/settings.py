"""The user's own settings: where artifacts come from here. They never change a lock.

``envbuilder.toml`` in the project, else in the user's configuration folder. The Python index is pip's and uv's
business and Debian's mirror apt's; what stands here goes before theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import Field, field_validator

from envbuilder import data
from envbuilder.stack.fields import Strict, load_model

# What an image out of a file is called in a policy: the name it bears was given by whoever made the file.
ARCHIVE = "archive"
# A scheme, a digest, a tag or a blank: what stands in no ``host/repository``.
_IN_NO_NAME = re.compile(r"://|@|/[^/]*:|\s")

Url = Annotated[str, Field(pattern=r"^(https?|file)://\S+$")]


class DebianSettings(Strict):
    """Mirrors of Debian's archive and of its security archive, say of a snapshot. apt's own by default."""

    mirror: Url | None = None
    security_mirror: Url | None = None


class MirrorSettings(Strict):
    """Mirrors of conda channels, the PyTorch index, git hosts and image registries.

    ``sets`` are ready-made sets by name (see docs/mirrors.md). ``replace`` maps the beginning of a canonical address
    (for registries, their host) to what stands there instead, in the order they are tried; it goes before the sets.
    """

    sets: tuple[str, ...] = ()
    replace: dict[str, tuple[str, ...]] = Field(default_factory=dict)


class Identity(Strict):
    """Who signs without a key of his own: an address or the URI of a workflow, and who vouches for it."""

    identity: str
    issuer: Url


class ImagePolicy(Strict):
    """What is asked of the images whose ``host/repository`` matches a pattern such as ``registry.example.org/team/*``.

    Images out of a file are called ``archive``. ``keys`` are files of public keys, relative to the settings file.
    """

    match: str
    require: Literal["signed", "nothing"]
    keys: tuple[str, ...] = ()
    identities: tuple[Identity, ...] = ()

    @field_validator("match")
    @classmethod
    def _matches_something(cls, pattern: str) -> str:
        """A pattern that no image's name can match would let every image in without a word."""
        if _IN_NO_NAME.search(pattern) or not (pattern == ARCHIVE or set("/*?[") & set(pattern)):
            raise ValueError(
                f"{pattern!r} matches no image: names are host/repository, without scheme, tag and digest, or {ARCHIVE}"
            )
        return pattern


class PolicySettings(Strict):
    """Which images may come onto this host; the first pattern that matches counts."""

    images: tuple[ImagePolicy, ...] = ()


class Settings(Strict):
    """The content of ``envbuilder.toml``."""

    debian: DebianSettings = DebianSettings()
    mirrors: MirrorSettings = MirrorSettings()
    policy: PolicySettings = PolicySettings()


def load_settings() -> Settings:
    """The settings of the project, else the user's, else none. Raises InputError for a wrong file."""
    return next((settings for _, settings in settings_files()), Settings())


def settings_files() -> Iterator[tuple[Path, Settings]]:
    """The project's settings, then the user's, as far as there are any. Raises InputError for a wrong file."""
    for folder in (data.project_root(), platformdirs.user_config_path("envbuilder")):
        path = folder / "envbuilder.toml"
        # What is there and is no file stops too: a policy that cannot be read is not one that asks nothing.
        if path.exists() or path.is_symlink():
            yield path, load_model(Settings, path)
