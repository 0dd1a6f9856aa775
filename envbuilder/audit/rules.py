"""What is known of single libraries (``rules.toml``): which lack code by design, which nobody needs."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from envbuilder import toml


@dataclass(frozen=True)
class Rule:
    """What holds for the files whose name (or path in the package) matches one of ``files``.

    ``partly``: units that lack code for a card are so by design, one unit with code is enough.
    ``optional``: the file serves a back end that is not needed; that it does not run raises no alarm.
    ``variants``: several builds of the same library, of which one is loaded; one that runs is enough.
    ``own_business``: the file holds code that is not loaded as it lies there (a compiler's templates).
    """

    id: str
    files: tuple[str, ...]
    why: str
    source: str
    partly: bool = False
    optional: bool = False
    variants: bool = False
    own_business: bool = False

    def covers(self, path: str) -> bool:
        """Whether the rule holds for the file at ``path``."""
        name = path.rsplit("/", 1)[-1]
        return any(fnmatchcase(path if "/" in glob else name, glob) for glob in self.files)


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """All rules, in the order of the file: the first that covers a file holds."""
    table = toml.load(Path(__file__).with_name("rules.toml"))
    return tuple(Rule(**{**row, "files": tuple(row["files"])}) for row in table["rule"])


def rule_for(path: str) -> Rule | None:
    """The rule for a file, or None: then every unit must run."""
    return next((rule for rule in rules() if rule.covers(path)), None)
