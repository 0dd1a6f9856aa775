"""What images are called."""

from __future__ import annotations

TARGET_LABEL = "io.envbuilder.target"
# Images rebuilt to be compared, each tagged with the name of the scratch folder of its time: never there for long.
REBUILT = "localhost/envbuilder/rebuilt"


def image_tag(stack: str, target: str = "runtime", *, slim: bool = False) -> str:
    """The name under which ``build`` stores the image of a stack: ``localhost/envbuilder/p40-debian:runtime``.

    A slim image is another image: ``...:runtime-slim``.
    """
    return f"localhost/envbuilder/{stack}:{target}{'-slim' if slim else ''}"
