"""Facts of the bases that Python files must fit, out of suites.toml and the stack."""

from __future__ import annotations

from pathlib import Path

from envbuilder import toml
from envbuilder.errors import InputError, Place
from envbuilder.stack.model import Stack

_SUITES = Path(__file__).with_name("suites.toml")


def base_glibc(stack: Stack) -> str:
    """The glibc of the stack's base, as major.minor. Raises InputError for a Debian suite nothing is known of."""
    place = Place(f"stacks/{stack.name}.toml", field="debian.suite" if stack.debian else "conda.virtual_packages")
    if stack.debian is None:
        version = stack.conda.virtual_packages.get("__glibc") if stack.conda else None
        if version is None:
            raise InputError("the stack does not say which glibc its base has", place=place, cure="Give __glibc.")
        return version
    suites = toml.load(_SUITES)
    if stack.debian.suite not in suites:
        raise InputError(
            f"nothing is known of the Debian suite {stack.debian.suite!r}",
            place=place,
            cure=f"One of: {', '.join(suites)}.",
        )
    return str(suites[stack.debian.suite]["glibc"])
