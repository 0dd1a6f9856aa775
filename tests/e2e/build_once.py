"""Build a stack with nothing out of a cache of layers, and print what it is: run in a checkout by ``checkouts.py``."""

import json
import sys

from envbuilder.errors import EnvbuilderError
from envbuilder.image.buildah import Buildah
from envbuilder.image.building import build_stack
from envbuilder.lock.reading import load_lock
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from tests.small_stack import small_stack


def main(name: str) -> None:
    """Build the stack ``name``."""
    if name == "small":
        stack, gpu, lock = small_stack()
    else:
        stack, gpu = load_stack(name)
        lock = load_lock(stack)
    try:
        built = build_stack(stack, gpu, lock, Buildah(), Silent(), cache=False)
    except EnvbuilderError as error:
        sys.exit(f"{error}\n{error.detail}")
    layers = [layer.digest for layer in built.image.layers]
    print(json.dumps({"id": built.identity, "stored": built.image.id, "layers": layers, "seconds": built.seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
