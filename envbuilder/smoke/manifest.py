"""What the image says of itself: the stack, its GPU profile and the lock digest, as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place

IMAGE_MANIFEST = Path("/opt/envbuilder/stack.json")


@dataclass(frozen=True)
class Manifest:
    """``stack`` and ``gpu`` are the models of ``envbuilder.stack`` as JSON; ``lock`` is ``sha256:...`` or empty.

    ``builds`` maps a capability (``6.1``) to the torch builds known to hold code for it.
    """

    stack: Mapping[str, Any]
    gpu: Mapping[str, Any]
    lock: str = ""
    builds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fact(self, name: str) -> Any:
        """The value of a fact of the GPU profile: ``fact("fp32_tflops")``."""
        return self.gpu[name]["value"]

    @property
    def capability(self) -> tuple[int, int]:
        """The profile's compute capability: (6, 1)."""
        major, minor = str(self.fact("capability")).split(".")
        return int(major), int(minor)

    @property
    def memory_cap_bytes(self) -> int:
        """What a program may use on the card, in bytes."""
        return int(self.fact("usable_memory_gib") * 2**30)

    @property
    def has_apex(self) -> bool:
        """Whether the stack builds Apex."""
        return "apex" in self.stack.get("sources", {})


def load_manifest(path: Path) -> Manifest:
    """Read the manifest. Raises InputError when it is missing or is not what an image holds."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return Manifest(
            stack=data["stack"],
            gpu=data["gpu"],
            lock=data.get("lock", ""),
            builds={k: tuple(v) for k, v in data.get("builds", {}).items()},
        )
    except FileNotFoundError:
        raise InputError(
            "there is no description of the stack here",
            place=Place(str(path)),
            cure="Run the suite in an image that envbuilder built, or give --profile FILE.",
        ) from None
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"this is no description of a stack: {error}",
            place=Place(str(path)),
            cure="It holds `stack`, `gpu` and `lock`; `envbuilder build` writes it into the image.",
        ) from None
