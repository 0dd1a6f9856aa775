"""The command on a small hand-written verl: a folder, a wheel, the hook, the manifest."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from envbuilder.cli import run
from envbuilder.errors import IntegrityError
from envbuilder.patch import manifest as manifests
from envbuilder.patch import tree
from envbuilder.patch.manifest import Manifest, manifest_text
from envbuilder.patch.plan import PADDING_FILE, make_plan, padding_source
from envbuilder.patch.rules import load_rules
from envbuilder.patch.target import Target
from envbuilder.stack.fields import load_model
from envbuilder.stack.gpu import load_gpu

P40 = Target("float32", "eager", compile=False)
SOURCES = {
    "verl/version/version": "0.5.0\n",
    "verl/__init__.py": "",
    "verl/workers/actor/dp_actor.py": (
        "import torch\nif cuda:\n    from flash_attn.bert_padding import pad_input\n\n\n"
        "def forward(d):\n    with torch.autocast(device_type=d, dtype=torch.bfloat16):\n        pass\n"
    ),
    "verl/utils/torch_functional.py": "def late():\n    from flash_attn.bert_padding import pad_input\n",
    "verl/models/mcore/converter.py": "TYPES = {'bf16': 1}\n",
    "verl/trainer/config/rollout/rollout.yaml": "dtype: bfloat16\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in SOURCES.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    return tmp_path / "tree"


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "verl-0.5.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in SOURCES.items():
            archive.writestr(name, text)
        archive.writestr("verl-0.5.0.dist-info/RECORD", "".join(f"{name},,\n" for name in SOURCES))
    return path


def test_a_folder_is_patched_checked_and_left_alone_by_a_second_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["patch", "verl", str(folder), "--gpu", "p40", "--check"]) == 1
    assert "4 sites of verl 0.5.0 are not covered" in capsys.readouterr().out
    assert run(["patch", "verl", str(folder), "--gpu", "p40"]) == 0
    shown = capsys.readouterr().out
    assert "verl/workers/actor/dp_actor.py:3: advice padding helpers out of flash-attn" in shown
    assert "4 sites; 4 rewritten in 4 files" in shown
    assert (folder / PADDING_FILE).read_bytes() == padding_source()
    after = tree.read(folder)
    assert run(["patch", "verl", str(folder), "--gpu", "p40"]) == 0
    assert "no site is left to rewrite" in capsys.readouterr().out
    assert tree.read(folder) == after


def test_with_the_hook_only_what_it_does_not_carry_is_rewritten(folder: Path) -> None:
    plan = make_plan(tree.read(folder), P40, hook=True)
    assert [(s.file, s.change.line, s.by) for s in plan.sites] == [
        ("verl/trainer/config/rollout/rollout.yaml", 1, "override"),
        ("verl/utils/torch_functional.py", 2, "hook"),
        ("verl/workers/actor/dp_actor.py", 3, "codemod"),
        ("verl/workers/actor/dp_actor.py", 7, "hook"),
    ]
    assert sorted(plan.changes) == [PADDING_FILE, "verl/workers/actor/dp_actor.py"]
    assert b"torch.bfloat16" in plan.changes["verl/workers/actor/dp_actor.py"][1]
    assert list(plan.left) == ["verl/models/mcore/converter.py"]


def test_no_site_is_handled_twice(folder: Path) -> None:
    """After the codemod with the hook, what is left is exactly what the hook and the overrides carry."""
    before = make_plan(tree.read(folder), P40, hook=True)
    tree.write_folder(folder, before.changes)
    after = make_plan(tree.read(folder), P40, hook=True)
    carried = [(s.file, s.change) for s in before.sites if s.by != "codemod"]
    assert [(s.file, s.change) for s in after.sites] == carried
    assert not any(s.by == "codemod" for s in after.sites)


def test_a_wheel_is_patched_into_another_the_same_each_time(wheel: Path, tmp_path: Path) -> None:
    outputs = [tmp_path / "a" / wheel.name, tmp_path / "b" / wheel.name]
    for output in outputs:
        assert run(["patch", "verl", str(wheel), "--gpu", "p40", "--output", str(output)]) == 0
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    with zipfile.ZipFile(outputs[0]) as archive:
        record = archive.read("verl-0.5.0.dist-info/RECORD").decode()
        data = archive.read(PADDING_FILE)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    assert f"{PADDING_FILE},sha256={digest},{len(data)}" in record.splitlines()


def test_the_diff_is_printed_and_nothing_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree.read(folder)
    assert run(["patch", "verl", str(folder), "--gpu", "p40", "--diff"]) == 0
    shown = capsys.readouterr().out
    assert "-    from flash_attn.bert_padding import pad_input\n+    from verl.utils.plain_padding" in shown
    assert f"--- /dev/null\n+++ b/{PADDING_FILE}\n" in shown
    assert tree.read(folder) == before


def test_json_lists_every_site_with_its_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["patch", "verl", str(folder), "--gpu", "p40", "--hook", "--json"]) == 0
    sites = json.loads(capsys.readouterr().out)["facts"]["sites"]
    assert sites[0]["overrides"] == ["actor_rollout_ref.rollout.dtype"]
    assert all(site["why"] and site["reason"] for site in sites)


def test_a_site_that_is_not_understood_stops_before_anything_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "verl" / "zz.py").write_text("x = 1\nfrobnicate(torch.bfloat16)\n")
    before = tree.read(folder)
    assert run(["patch", "verl", str(folder), "--gpu", "p40"]) == 2
    assert "verl/zz.py:2: not understood" in capsys.readouterr().err
    assert tree.read(folder) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["missing", "--gpu", "p40"],
        [".", "--gpu", "p40"],
        [".", "--gpu", "p4"],
        [".", "--gpu", "p40", "--diff", "--json"],
        [".", "--gpu", "p40", "--output", "x.whl"],
    ],
)
def test_wrong_use(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["patch", "verl", *arguments]) == 2


def test_a_wheel_needs_an_output_and_must_be_one(wheel: Path, tmp_path: Path) -> None:
    assert run(["patch", "verl", str(wheel), "--gpu", "p40"]) == 2
    wheel.write_bytes(b"no zip")
    assert run(["patch", "verl", str(wheel), "--gpu", "p40", "--check"]) == 2


def test_the_hook_is_for_the_release_it_was_read_in(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "verl/version/version").write_text("0.6.1\n")
    assert run(["patch", "verl", str(folder), "--gpu", "p40", "--hook"]) == 2
    assert "Leave --hook out" in capsys.readouterr().err
    assert run(["patch", "verl", str(folder), "--gpu", "p40"]) == 0


def test_a_touched_file_that_differs_from_the_manifest_is_an_integrity_error(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "_FOLDER", tmp_path)
    plan = make_plan(tree.read(folder), P40, hook=False)
    (tmp_path / "verl-0.5.0-all.toml").write_text(manifest_text(plan))
    tree.write_folder(folder, plan.changes)
    assert run(["patch", "verl", str(folder), "--gpu", "p40", "--check"]) == 0
    with (folder / PADDING_FILE).open("a") as stream:
        stream.write("# edited\n")
    assert run(["patch", "verl", str(folder), "--gpu", "p40", "--check"]) == 5


@pytest.mark.parametrize("name", ["verl-0.5.0-hook.toml", "verl-0.5.0-all.toml"])
def test_the_committed_manifests_belong_to_the_rules_and_the_padding_of_today(name: str) -> None:
    manifest = load_model(Manifest, Path(manifests.__file__).with_name("manifests") / name)
    row = next(row for row in manifest.file if row.path == PADDING_FILE)
    assert row.after == hashlib.sha256(padding_source()).hexdigest(), "run python -m envbuilder.patch.manifest"
    assert {site.kind for site in manifest.site} <= load_rules().kinds.keys()
    assert {site.file for site in manifest.site if site.by == "codemod"} == {r.path for r in manifest.file} - {
        PADDING_FILE
    }
    with pytest.raises(IntegrityError):
        manifest.verify({})


def test_every_override_the_rules_rely_on_is_among_those_the_launch_gives() -> None:
    data = json.loads((Path(manifests.__file__).parents[1] / "smoke" / "verl_overrides.json").read_text())
    given = {row["key"] for row in data["overrides"]}
    for carrier in load_rules().carrier:
        assert (carrier.by == "override") == bool(carrier.overrides)
        assert set(carrier.overrides) <= given


def test_the_target_of_a_card_is_what_its_profile_can() -> None:
    assert Target.of_card(load_gpu("p40")) == P40
