"""verl's external_lib for comparison: ours without `envbuilder.train.step.wrapping`, the actor in one FSDP unit."""

from __future__ import annotations

from envbuilder.train.step import wrapping

wrapping.install = lambda: None

# After the line above, which it must find, and for what it does when it is imported.
import envbuilder.train.external_lib  # noqa: E402, F401  # installs everything else
