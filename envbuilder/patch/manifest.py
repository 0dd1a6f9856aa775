"""The manifest of a pinned verl: the digest of every file the codemod touches, before and after, and the sites.

It holds none of verl's own code. Beside it, for an image build that has no libcst, the same as edits of bytes
(``envbuilder/smoke/verl_edits.json``). Made anew, after a change of the rules or of the pin, by

    python -m envbuilder.patch.manifest verl-0.5.0-py2.py3-none-any.whl
"""

from __future__ import annotations

import difflib
import hashlib
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import tomli_w
from pydantic import Field

from envbuilder.errors import IntegrityError, NotEnoughError, Place
from envbuilder.files import write_text
from envbuilder.patch import tree
from envbuilder.patch.plan import Plan, make_plan
from envbuilder.patch.rules import By
from envbuilder.patch.target import Target
from envbuilder.stack.fields import Strict, load_model

_FOLDER = Path(__file__).with_name("manifests")
EDITS = Path(__file__).parents[1] / "smoke" / "verl_edits.json"
# What the stacks that pin verl compute in.
_PINNED = Target(dtype="float32", attention="eager", compile=False)


class TouchedFile(Strict):
    """A file's SHA-256 before (None: the codemod adds it) and after."""

    path: str
    before: str | None = None
    after: str


class ListedSite(Strict):
    """A site and who carries it; line numbers are those of the release."""

    file: str
    line: int
    kind: str
    by: By


class Manifest(Strict):
    """What the codemod does to one release for one target, with or without the hook."""

    schema_: Literal[1] = Field(alias="schema")
    verl: str
    hook: bool
    dtype: str
    attention: str
    compile: bool
    file: tuple[TouchedFile, ...]
    site: tuple[ListedSite, ...]

    def verify(self, files: Mapping[str, bytes]) -> None:
        """Raise IntegrityError, naming the files, unless every touched file is as it should be afterwards."""
        wrong = []
        for row in self.file:
            found = _sha256(files[row.path]) if row.path in files else "missing"
            if found != row.after:
                state = ", as released and not patched" if found == row.before else ""
                wrong.append(f"{row.path}: {found}{state}\n  expected {row.after}")
        if wrong:
            raise IntegrityError(
                f"{len(wrong)} of {len(self.file)} files are not what the codemod makes of verl {self.verl}",
                place=Place(wrong[0].partition(":")[0]),
                detail="\n".join(wrong),
                cure="Start again from verl's own wheel.",
            )


def find_manifest(version: str, target: Target, *, hook: bool) -> Manifest | None:
    """The committed manifest of a release for this target, or None where there is none."""
    path = _path(version, hook)
    if not path.is_file():
        return None
    manifest = load_model(Manifest, path)
    same = (manifest.dtype, manifest.attention, manifest.compile) == (target.dtype, target.attention, target.compile)
    return manifest if same else None


def manifest_text(plan: Plan) -> str:
    """The manifest of a plan for an untouched release, as TOML."""
    data = {
        "schema": 1,
        "verl": plan.version,
        "hook": plan.hook,
        "dtype": plan.target.dtype,
        "attention": plan.target.attention,
        "compile": plan.target.compile,
        "file": [
            {
                "path": name,
                **({"before": _sha256(before)} if before is not None else {}),
                "after": _sha256(after),
            }
            for name, (before, after) in sorted(plan.changes.items())
        ],
        "site": [{"file": s.file, "line": s.change.line, "kind": s.change.kind, "by": s.by} for s in plan.sites],
    }
    head = "# Made by `python -m envbuilder.patch.manifest`: what the codemod does to this release. Not to be edited.\n"
    return head + tomli_w.dumps(data)


def write_manifests(wheel: Path) -> list[Path]:
    """Write the manifests, with and without the hook, of the release in ``wheel``; their paths."""
    files = tree.read(wheel)
    written = []
    for hook in (True, False):
        plan = make_plan(files, _PINNED, hook=hook)
        if not plan.sites:
            raise NotEnoughError("this verl has no site left: it was patched before", place=Place(str(wheel)))
        path = _path(plan.version, hook)
        write_text(path, manifest_text(plan))
        written.append(path)
        if hook:
            write_text(EDITS, edits_text(plan))
            written.append(EDITS)
    return written


def edits_text(plan: Plan) -> str:
    """The plan as edits of bytes with digests before and after, for ``envbuilder.smoke.patched``, as JSON."""
    rows = [
        {
            "path": name,
            "before": _sha256(before or b""),
            "after": _sha256(after),
            "edits": _edits(before or b"", after),
        }
        for name, (before, after) in sorted(plan.changes.items())
    ]
    target = {"dtype": plan.target.dtype, "attention": plan.target.attention, "compile": plan.target.compile}
    return json.dumps({"verl": plan.version, **target, "files": rows}, indent=1) + "\n"


def _edits(before: bytes, after: bytes) -> list[tuple[int, int, str]]:
    """What to put in place of which bytes of ``before``, without what both have in common at either end."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    starts = [0, *itertools.accumulate(map(len, old))]
    edits = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag != "equal":
            was, becomes = b"".join(old[a:b]), b"".join(new[c:d])
            head = _common(was, becomes)
            tail = _common(was[head:][::-1], becomes[head:][::-1])
            edits.append((starts[a] + head, starts[b] - tail, becomes[head : len(becomes) - tail].decode()))
    return edits


def _common(one: bytes, other: bytes) -> int:
    """How many bytes both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _path(version: str, hook: bool) -> Path:
    return _FOLDER / f"verl-{version}-{'hook' if hook else 'all'}.toml"


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


if __name__ == "__main__":
    for path in write_manifests(Path(sys.argv[1])):
        sys.stdout.write(f"{path}\n")
