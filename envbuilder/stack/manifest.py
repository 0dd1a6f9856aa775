"""What an image says of itself in /opt/envbuilder/stack.json, for the suite that runs inside it."""

from __future__ import annotations

import json
from typing import Any

from envbuilder.stack.compat.torch_builds import builds_for
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack

# The capabilities of the cards torch builds have been dropping; a card's own is added.
_OLD = ((5, 2), (6, 0), (6, 1), (7, 0))


def image_manifest(stack: Stack, gpu: GpuProfile, lock_digest: str) -> dict[str, Any]:
    """The stack, its GPU profile, the lock digest and the torch builds known per capability, JSON-typed."""
    capabilities = sorted({*_OLD, gpu.major_minor})
    return {
        "schema": 1,
        "stack": stack.model_dump(mode="json", by_alias=True),
        "gpu": gpu.model_dump(mode="json", by_alias=True),
        "lock": lock_digest,
        "builds": {f"{c[0]}.{c[1]}": [f"{version}+{tag}" for version, tag in builds_for(c)] for c in capabilities},
    }


def image_manifest_text(stack: Stack, gpu: GpuProfile, lock_digest: str) -> str:
    """The manifest as the bytes-stable text of the file."""
    return json.dumps(image_manifest(stack, gpu, lock_digest), indent=1, sort_keys=True) + "\n"
