"""Filling in the files of ``templates/``."""

from __future__ import annotations

import shlex
from typing import Any

from envbuilder import data
from envbuilder.lock.model import BaseImage


def render(name: str, **values: Any) -> str:
    """The text of template ``name``. A name the template uses and is not given is a fault of ours, and raises."""
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Dockerfiles and YAML, not HTML; values come from validated models
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["pinned"] = pinned
    return environment.from_string(data.find("templates", name).read_text(encoding="utf-8")).render(**values)


def pinned(image: BaseImage) -> str:
    """What stands behind FROM: registry, name, tag and digest."""
    return f"{qualified(image.reference)}@{image.digest}"


def qualified(reference: str) -> str:
    """An image reference with its registry: what names none is Docker Hub's, and not every engine assumes that."""
    host = reference.split("/")[0]
    return reference if "." in host or ":" in host else f"docker.io/{reference}"
