"""The step of an image build that patches the installed verl, on a small hand-written verl."""

from __future__ import annotations

from pathlib import Path

import pytest

from envbuilder.errors import InputError, IntegrityError
from envbuilder.patch import tree
from envbuilder.patch.manifest import edits_text
from envbuilder.patch.plan import make_plan, padding_source
from envbuilder.patch.target import Target
from envbuilder.smoke import patched
from tests.unit.patch.test_verl import SOURCES

P40 = Target("float32", "eager", compile=False)
COMPUTE = {"dtype": "float32", "attention": "eager", "compile": False}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in {**SOURCES, "verl-0.5.0.dist-info/RECORD": "verl/__init__.py,,\n"}.items():
        (tmp_path / "site" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "site" / name).write_text(text)
    edits = tmp_path / "edits.json"
    edits.write_text(edits_text(make_plan(tree.read(tmp_path / "site"), P40, hook=True)))
    monkeypatch.setattr(patched, "EDITS", edits)
    return tmp_path / "site"


def test_it_does_what_the_codemod_does_and_nothing_the_second_time(site: Path) -> None:
    plan = make_plan(tree.read(site), P40, hook=True)
    before = (site / "verl/workers/actor/dp_actor.py").stat()
    assert patched.apply(site, COMPUTE) == sorted(plan.changes)
    assert {name: (site / name).read_bytes() for name in plan.changes} == {n: a for n, (_, a) in plan.changes.items()}
    after = (site / "verl/workers/actor/dp_actor.py").stat()
    assert (after.st_mode, after.st_mtime) == (before.st_mode, before.st_mtime)
    assert "verl/utils/plain_padding.py,sha256=" in (site / "verl-0.5.0.dist-info/RECORD").read_text()
    assert patched.apply(site, COMPUTE) == []


def test_a_file_of_another_verl_stops_it_before_anything_is_written(site: Path) -> None:
    (site / "verl/workers/actor/dp_actor.py").write_text("edited = True\n")
    with pytest.raises(IntegrityError, match=r"not the file of verl 0\.5\.0"):
        patched.apply(site, COMPUTE)
    assert not (site / "verl/utils/plain_padding.py").exists()


def test_a_stack_that_computes_otherwise_is_refused(site: Path) -> None:
    with pytest.raises(InputError, match="attention"):
        patched.apply(site, {**COMPUTE, "attention": "sdpa"})


def test_the_committed_edits_add_the_padding_of_today() -> None:
    import json

    rows = {row["path"]: row for row in json.loads(patched.EDITS.read_text())["files"]}
    assert rows["verl/utils/plain_padding.py"]["edits"] == [[0, 0, padding_source().decode()]]
