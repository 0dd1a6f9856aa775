"""What images are called."""

from __future__ import annotations


def image_tag(stack: str, target: str = "runtime") -> str:
    """The name under which ``build`` stores the image of a stack: ``localhost/envbuilder/p40-debian:runtime``."""
    return f"localhost/envbuilder/{stack}:{target}"
