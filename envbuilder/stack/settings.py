"""The user's own settings: where artifacts come from here. They never change a lock.

``envbuilder.toml`` in the project, else in the user's configuration folder. The Python index is pip's and uv's
business and Debian's mirror apt's; what stands here goes before theirs.
"""

from __future__ import annotations

from typing import Annotated

import platformdirs
from pydantic import Field

from envbuilder import data
from envbuilder.stack.fields import Strict, load_model

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


class Settings(Strict):
    """The content of ``envbuilder.toml``."""

    debian: DebianSettings = DebianSettings()
    mirrors: MirrorSettings = MirrorSettings()


def load_settings() -> Settings:
    """The settings of the project, else the user's, else none. Raises InputError for a wrong file."""
    for folder in (data.project_root(), platformdirs.user_config_path("envbuilder")):
        path = folder / "envbuilder.toml"
        if path.is_file():
            return load_model(Settings, path)
    return Settings()
