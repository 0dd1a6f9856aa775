"""The codemod on the releases themselves, fetched by hash through the client's own index."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envbuilder.patch import tree
from envbuilder.patch.manifest import edits_text, find_manifest, manifest_text
from envbuilder.patch.plan import make_plan
from envbuilder.patch.target import Target
from envbuilder.patch.verl import apply, check, plan_for
from envbuilder.smoke import patched

P40 = Target("float32", "eager", compile=False)
ROOT = Path(__file__).parents[2]
# SHA-256 of the wheels, and how many sites each holds.
RELEASES = {
    "0.4.1": ("160a9fe5509f8d1c1ec98c00a18925128387b25c97420fb8e836f6e848cf20aa", 35),
    "0.5.0": ("7c1896d67eaa09cd01ef67b1d8e8c371e69b9d3c9995fbc574d5eb80bb3cc99e", 40),
    "0.6.1": ("a67dd50fb99b402db0c990d4c92710be9a728cb18607515daa0f1e8552e47983", 45),
}


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("wheels")
    found = {}
    for version, (digest, _) in RELEASES.items():
        wanted = folder / f"{version}.txt"
        wanted.write_text(f"verl=={version} --hash=sha256:{digest}\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--require-hashes",
             "-r", str(wanted), "-d", str(folder)],
            check=True,
        )  # fmt: skip
        found[version] = next(folder.glob(f"verl-{version}-*.whl"))
    return found


@pytest.mark.e2e
@pytest.mark.parametrize("version", RELEASES)
def test_a_release_is_understood_whole_and_a_second_run_changes_nothing(
    version: str, wheels: dict[str, Path], tmp_path: Path
) -> None:
    plan = plan_for(wheels[version], P40, hook=False)
    assert (plan.version, len(plan.sites)) == (version, RELEASES[version][1])
    output = tmp_path / wheels[version].name
    apply(wheels[version], plan, output)
    assert check(output, P40, hook=False).verdict.exit_code == 0
    again = plan_for(output, P40, hook=False)
    assert (again.sites, dict(again.changes)) == ((), {})
    for name, data in tree.read(output).items():
        if name.endswith(".py"):
            compile(data, name, "exec")


@pytest.mark.e2e
@pytest.mark.parametrize("hook", [True, False])
def test_the_committed_manifest_is_what_the_pinned_release_gives(hook: bool, wheels: dict[str, Path]) -> None:
    plan = make_plan(tree.read(wheels["0.5.0"]), P40, hook=hook)
    path = ROOT / "envbuilder" / "patch" / "manifests" / f"verl-0.5.0-{'hook' if hook else 'all'}.toml"
    assert path.read_text() == manifest_text(plan)
    if hook:
        assert patched.EDITS.read_text() == edits_text(plan)
    assert find_manifest("0.5.0", P40, hook=hook) is not None


_WORKER = """
import torch
torch.cuda.is_available = lambda: True   # verl asks torch, and imports flash-attn's helpers when there is CUDA
import verl, verl.workers.actor.dp_actor as actor   # as a worker does: before external_lib is imported
torch.cuda.is_available = lambda: False
assert actor.unpad_input.__module__ == "verl.utils.plain_padding", actor.unpad_input
import verl.utils.torch_functional as functional
patched = functional.masked_var
assert patched(torch.ones(1), torch.ones(1)) == 0
import verl.workers.fsdp_workers as workers
import envbuilder.smoke.external_lib
assert workers.ActorRolloutRefWorker._build_model_optimizer.__wrapped__  # only the hook carries the reference's place
assert functional.masked_var is patched   # the codemod carries it: the hook leaves it alone
from flash_attn.bert_padding import pad_input
print(verl.__file__)
"""


@pytest.mark.e2e
def test_a_worker_of_the_patched_wheel_finds_everything_carried_once(wheels: dict[str, Path], tmp_path: Path) -> None:
    """In the smoke environment (make smoke), whose own verl is not patched, with the patched wheel in front of it."""
    from tests.smoke.manifests import write_manifest

    wheel = tmp_path / wheels["0.5.0"].name
    plan = plan_for(wheels["0.5.0"], P40, hook=True)
    apply(wheels["0.5.0"], plan, wheel)
    assert check(wheel, P40, hook=True).verdict.exit_code == 0
    folder = tmp_path / "patched"
    install = ["uv", "pip", "install", "--quiet", "--no-deps", "--link-mode=copy", "--target", str(folder)]
    subprocess.run([*install, str(wheels["0.5.0"])], check=True)
    assert patched.apply(folder, vars(P40)) == sorted(plan.changes)  # what an image build does, without libcst
    assert tree.read(folder) == tree.read(wheel)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{folder}:{ROOT}",
        "ENVBUILDER_STACK": str(write_manifest(tmp_path / "stack.json")),
    }
    python = ROOT / ".smoke-venv" / "bin" / "python"
    done = subprocess.run([python, "-c", _WORKER], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert str(folder) in done.stdout
