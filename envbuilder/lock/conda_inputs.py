"""What conda-lock is asked: an environment file and the virtual packages of the target, made from a stack."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.compat import StringIO

from envbuilder.errors import InputError, Place
from envbuilder.files import write_text
from envbuilder.stack.model import Stack

PLATFORM = "linux-64"
# What every target has. conda-lock 4.0.3 assumes the same kernel for linux-64 (its default-virtual-packages.yaml).
_BASIC_VIRTUAL = {"__unix": "0", "__linux": "5.10", "__archspec": "1 x86_64"}
_NEEDED_VIRTUAL = ("__cuda", "__glibc")


@dataclass(frozen=True)
class CondaInputs:
    """Channels in order of priority, requirements (``name ==version``), virtual packages; ``name`` names the files."""

    name: str
    channels: tuple[str, ...]
    requirements: tuple[str, ...]
    virtual_packages: dict[str, str]
    place: Place = field(default_factory=Place)

    @property
    def environment_name(self) -> str:
        """The file name of the environment file."""
        return f"{self.name}.environment.yml"

    @property
    def virtual_name(self) -> str:
        """The file name of the virtual packages."""
        return f"{self.name}.virtual-packages.yml"

    @property
    def lock_name(self) -> str:
        """The file name of the lock."""
        return f"{self.name}.conda-lock.yml"

    def write(self, folder: Path) -> tuple[Path, Path]:
        """Write both inputs into ``folder``; their paths."""
        environment, virtual = folder / self.environment_name, folder / self.virtual_name
        for path, text in ((environment, self.environment_text()), (virtual, self.virtual_text())):
            # Left alone when nothing changed, so that a second lock touches no file.
            if not path.is_file() or path.read_text(encoding="utf-8") != text:
                write_text(path, text)
        return environment, virtual

    def environment_text(self) -> str:
        """The environment file as conda, mamba and conda-lock read it."""
        head = "# What conda-lock is asked for; written by `envbuilder lock` out of the stack.\n"
        body = {"channels": list(self.channels), "dependencies": list(self.requirements), "platforms": [PLATFORM]}
        return head + _yaml(body)

    def virtual_text(self) -> str:
        """The virtual packages: the target's, whatever the host that locks has."""
        head = "# The machine the lock is for, whatever the one it was made on; written by `envbuilder lock`.\n"
        return head + _yaml({"subdirs": {PLATFORM: {"packages": {**_BASIC_VIRTUAL, **self.virtual_packages}}}})


def stack_inputs(stack: Stack, file: str) -> CondaInputs | None:
    """The inputs of a stack's conda half, or None when it has none. ``file`` is the stack's file, for errors.

    Raises InputError when ``__cuda`` or ``__glibc`` is not given: conda-lock would then solve for its own defaults.
    """
    if stack.conda is None:
        return None
    for name in _NEEDED_VIRTUAL:
        if name not in stack.conda.virtual_packages:
            raise InputError(
                f"the virtual package {name} is not given, so the lock would depend on a solver's defaults",
                place=Place(file, field="conda.virtual_packages"),
                cure=f'Add it, for example {name} = "{"11.8" if name == "__cuda" else "2.35"}".',
            )
    return CondaInputs(
        name=stack.name,
        channels=stack.conda.channels,
        requirements=tuple(f"{name} =={pin.version}" for name, pin in sorted(stack.conda.packages.items())),
        virtual_packages=dict(stack.conda.virtual_packages),
        place=Place(file, field="conda.packages"),
    )


def _yaml(data: object) -> str:
    writer = YAML()
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = StringIO()
    writer.dump(data, stream)
    return str(stream.getvalue())
