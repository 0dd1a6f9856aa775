"""Files without a fault give no finding, in either language; so do the files that this project renders itself."""

from pathlib import Path

import pytest

from envbuilder.data import builtin_root
from envbuilder.diagnose.lint import lint

HEALTHY = sorted(p for p in (Path(__file__).parents[3] / "data" / "healthy").iterdir() if p.name != "README.md")
OWN = sorted(
    [
        *builtin_root().glob("Dockerfile*"),
        *builtin_root().glob("environment*.yml"),
        *builtin_root().glob("locks/*.yml"),
        *builtin_root().glob("locks/*.txt"),
        *builtin_root().glob("stacks/*.toml"),
        builtin_root() / "pyproject.toml",
    ]
)


def test_there_are_enough_of_them() -> None:
    assert len(HEALTHY) >= 50


@pytest.mark.parametrize("path", HEALTHY, ids=[p.name for p in HEALTHY])
def test_a_healthy_file_gives_no_finding(path: Path) -> None:
    done = lint([path])
    assert not done.unknown, "lint must know the format"
    assert [(f.rule, f.place.line, f.title) for f in done.findings] == []


@pytest.mark.parametrize("path", OWN, ids=[p.name for p in OWN])
def test_what_this_project_renders_gives_no_finding(path: Path) -> None:
    assert [(f.rule, f.place.line, f.title) for f in lint([path]).findings] == []
