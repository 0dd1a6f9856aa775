"""The version of the uv that installs packages into images."""

from __future__ import annotations

from importlib.metadata import version


def uv_version() -> str:
    """The version of the uv package envbuilder runs with: its binary is what builds are given."""
    return version("uv")
