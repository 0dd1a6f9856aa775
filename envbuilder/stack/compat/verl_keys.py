"""The configuration keys of verl's releases (``verl_keys.toml``, generated from its wheels)."""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from envbuilder.stack.fields import Strict, load_model


class VerlKeys(Strict):
    """One release: key paths by trainer, mappings anything may be added to, names the code asks for."""

    version: str
    source: str = Field(min_length=8)
    free: tuple[str, ...]
    read: tuple[str, ...]
    keys: dict[str, tuple[str, ...]]

    def declared(self, entry: str) -> set[str]:
        """The key paths of a trainer; main_ppo counts Megatron's keys too."""
        return _declared(self.version, entry)

    def knows(self, key: str, entry: str) -> bool:
        """Whether the key exists, or lies in a mapping that is empty by default."""
        return key in self.declared(entry) or self.is_free(key)

    def is_free(self, key: str) -> bool:
        """Whether the key lies in a mapping that is empty by default: verl hands such values on."""
        return any(key.startswith(f"{path}.") for path in self.free)

    def reads(self, key: str, entry: str) -> bool:
        """Whether code may read the key though no default declares it: every undeclared part is a name it asks for."""
        if self.knows(key, entry):
            return True
        parts = key.split(".")
        declared = self.declared(entry)
        depth = next((n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in declared), 0)
        if depth == 0:
            return False
        return all(part in self.read for part in parts[depth:])

    def near(self, key: str, entry: str) -> list[str]:
        """Declared keys that look like the key, the likeliest first."""
        declared = sorted(self.declared(entry))
        last = key.rsplit(".", 1)[-1]
        same = [k for k in declared if k.rsplit(".", 1)[-1] == last]
        close = difflib.get_close_matches(key, declared, n=3, cutoff=0.75)
        return list(dict.fromkeys([*same[:3], *close]))[:3]


class VerlTable(Strict):
    """The table."""

    schema_: Literal[1] = Field(alias="schema")
    verl: tuple[VerlKeys, ...]


@lru_cache(maxsize=1)
def verl_tables() -> tuple[VerlKeys, ...]:
    """All releases, oldest first."""
    return load_model(VerlTable, Path(__file__).with_name("verl_keys.toml")).verl


@lru_cache(maxsize=32)
def _declared(version: str, entry: str) -> set[str]:
    table = next(row for row in verl_tables() if row.version == version)
    keys = set(table.keys.get(entry, ()))
    return keys | set(table.keys.get("main_ppo_megatron", ())) if entry == "main_ppo" else keys


def verl_keys(version: str) -> VerlKeys | None:
    """The table of an exact release; None where there is none."""
    return next((row for row in verl_tables() if row.version == version), None)


def versions_with(key: str, entry: str = "main_ppo") -> list[str]:
    """The releases that declare a key."""
    return [row.version for row in verl_tables() if key in row.declared(entry)]
