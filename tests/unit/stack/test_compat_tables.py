"""The tables: every row has a source, rows do not contradict one another, look-ups say only what the rows say."""

import re
from pathlib import Path

import pytest
import tomli

from envbuilder.errors import InputError
from envbuilder.stack.compat import torch_builds as torch_table
from envbuilder.stack.compat.cards import cards_in, find_card
from envbuilder.stack.compat.cuda import cuda_of_tag, distro, last_branch, tag_of_cuda, toolkit
from envbuilder.stack.compat.images import cuda_images, images
from envbuilder.stack.compat.packages import built_for, cudnn_of, floor, needs
from envbuilder.stack.compat.verl_keys import verl_keys, verl_tables, versions_with

FOLDER = Path(torch_table.__file__).parent
TABLES = sorted(FOLDER.glob("*.toml"))


def rows(path: Path) -> list[tuple[str, dict[str, object]]]:
    data = tomli.loads(path.read_text())
    return [(key, row) for key, value in data.items() if isinstance(value, list) for row in value]


@pytest.mark.parametrize("path", TABLES, ids=[p.name for p in TABLES])
def test_every_row_names_its_source(path: Path) -> None:
    found = rows(path)
    assert found
    for kind, row in found:
        assert len(str(row.get("source", ""))) >= 8, (kind, row)


def test_a_row_says_either_its_architectures_or_a_floor() -> None:
    good = torch_table.torch_builds()[0].model_dump()
    with pytest.raises(ValueError, match="either arches or a floor"):
        torch_table.TorchBuild.model_validate({**good, "floor": "7.0"})
    with pytest.raises(ValueError, match="either arches or a floor"):
        torch_table.TorchBuild.model_validate({**good, "arches": ()})
    with pytest.raises(ValueError, match="source"):
        torch_table.TorchBuild.model_validate({**good, "source": ""})


def test_builds_exist_only_for_tags_of_their_release() -> None:
    for row in torch_table.torch_builds():
        for version in row.torch:
            known = torch_table.release(version)
            if known and known.tags:
                assert row.cuda in known.tags, (version, row.cuda)


@pytest.mark.parametrize(
    ("version", "tag", "there"),
    [("2.6.0", "cu121", False), ("2.6.0", "cu118", True), ("2.8.0", "cu118", False), ("2.12.0", "cu126", True),
     ("9.9.9", "cu118", None)],
)  # fmt: skip
def test_what_was_published(version: str, tag: str, there: bool | None) -> None:
    assert torch_table.exists(version, tag) is there


@pytest.mark.parametrize(
    ("build", "capability", "runs", "refuses"),
    [
        ("2.6.0+cu118", (6, 1), True, False),
        ("2.7.1+cu128", (6, 1), False, True),
        ("2.9.1+cu126", (6, 1), True, False),
        ("2.9.1+cu128", (6, 1), False, True),
        ("2.9.1+cu128", (8, 6), False, False),
        ("2.13.0+cu126", (6, 1), True, False),
        ("2.13.0", (6, 1), False, True),
        ("2.6.0+cu124", (3, 7), False, True),
    ],
)
def test_runs_and_refuses_are_not_opposites(build: str, capability: tuple[int, int], runs: bool, refuses: bool) -> None:
    row = torch_table.find_build(build)
    assert row is not None
    assert (row.runs_on(capability), row.refuses(capability)) == (runs, refuses)


def test_what_is_not_known_stays_unknown() -> None:
    assert torch_table.find_build("2.6.1") is None
    assert toolkit("14.0") is None
    assert distro("plan9") is None
    assert built_for("xformers", "0.0.99") is None
    assert floor("nothing-of-that-name") is None
    assert verl_keys("0.1.0") is None
    assert cuda_images("11.9.0") is None


def test_cards() -> None:
    assert find_card("p40").capability == "6.1"
    assert find_card("GTX 1080 Ti").title == "GTX 1080 Ti"
    assert find_card("sm_61").capability == find_card("6.1").capability == "6.1"
    assert [c.capability for c in cards_in("one Tesla P100-PCIE-16GB, one RTX 3090")] == ["6.0", "8.6"]
    assert cards_in("GTX1080Ti")[0].capability == "6.1"
    assert not cards_in("the A10x bus, P4000, T40, model L4x")
    with pytest.raises(InputError):
        find_card("voodoo2")


def test_cuda() -> None:
    assert (cuda_of_tag("cu118"), cuda_of_tag("cu126"), cuda_of_tag("cpu")) == ("11.8", "12.6", "")
    assert tag_of_cuda("11.8.0") == "cu118"
    row = toolkit("11.8.0")
    assert row is not None
    assert (row.max_gcc, row.minimum_driver) == (11, "450.80.02")
    assert row.compiles_for((6, 1))
    thirteen = toolkit("13.0")
    assert thirteen is not None
    assert not thirteen.compiles_for((7, 0))
    branch = last_branch("Pascal (GP102)")
    assert branch is not None
    assert branch.branch == 580
    assert last_branch("Hopper") is None


def test_packages() -> None:
    for name, version, minimum in (
        ("flash-attn", "", "8.0"),
        ("vllm", "0.8.4", "7.0"),
        ("xformers", "0.0.32.post2", "7.5"),
    ):
        row = floor(name, version)
        assert row is not None
        assert row.minimum == minimum
    assert floor("xformers", "0.0.29.post2") is None
    built = built_for("vllm", "0.8.4")
    assert built is not None
    assert built.torch == "2.6.0"
    user = cudnn_of("ctranslate2", "4.4.0")
    assert user is not None
    assert user.cudnn == "8"
    assert needs("verl", "0.5.0") is not None
    assert needs("verl", "0.4.1") is None


def test_every_known_image_tag_has_the_shape_of_its_release() -> None:
    for known in images().known:
        match = re.match(r"nvidia/cuda:(\d+\.\d+\.\d+)-(cudnn\d*)?", known.tag)
        row = cuda_images(match.group(1)) if match else None
        assert not match or not match.group(2) or (row is not None and row.cudnn == match.group(2))


def test_verl_keys() -> None:
    table = verl_keys("0.5.0")
    assert table is not None
    assert table.knows("actor_rollout_ref.rollout.temperature", "main_ppo")
    assert table.knows("actor_rollout_ref.model.override_config.attn_implementation", "main_ppo"), "a free mapping"
    assert not table.knows("actor_rollout_ref.rollout.val_temperature", "main_ppo")
    assert table.reads("actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype", "main_ppo")
    assert not table.reads("actor_rollout_ref.fsdp_config.cpu_offload", "main_ppo")
    assert "actor_rollout_ref.rollout.temperature" in table.near("actor_rollout_ref.rollout.temprature", "main_ppo")
    assert [row.version for row in verl_tables()] == ["0.4.1", "0.5.0", "0.6.1"]
    assert versions_with("actor_rollout_ref.actor.fsdp_config.dtype") == ["0.6.1"]
