"""Mirrors: what the settings mean, and that only addresses move with them."""

from pathlib import Path

import pytest

from envbuilder.errors import InputError
from envbuilder.lock.mirrors import Mirrors, mirror_sets, mirrors_of
from envbuilder.lock.registry import ImageName
from envbuilder.stack.settings import MirrorSettings, Settings, load_settings

FORGE = "https://conda.anaconda.org/conda-forge"
# The Python index and Debian have their own clients' settings; no set may speak for them.
NOT_OURS = ("pypi", "simple", "debian")


def test_the_users_own_come_first_then_the_sets_then_the_address_itself() -> None:
    mirrors = mirrors_of(
        Settings(mirrors=MirrorSettings(sets=("tuna", "nju"), replace={FORGE: ("file:///mnt/forge",)}))
    )
    first, second, third, last = mirrors.addresses(f"{FORGE}/linux-64/x.conda")
    assert first == "file:///mnt/forge/linux-64/x.conda"
    assert second.startswith("https://mirrors.tuna.tsinghua.edu.cn/anaconda/cloud/conda-forge/")
    assert "nju" in third
    assert last == f"{FORGE}/linux-64/x.conda"


def test_a_beginning_is_a_whole_folder() -> None:
    mirrors = Mirrors(((FORGE, "https://m/forge"),))
    assert mirrors.addresses(f"{FORGE}-other/x") == [f"{FORGE}-other/x"]
    assert mirrors.addresses(FORGE) == ["https://m/forge", FORGE]


def test_labels_lie_below_their_channel() -> None:
    mirrors = mirrors_of(Settings(mirrors=MirrorSettings(sets=("sustech",))))
    found = mirrors.of_channels(["nvidia/label/cuda-11.8.0", FORGE])
    canonical = "https://conda.anaconda.org/nvidia/label/cuda-11.8.0"
    assert found[canonical][0].endswith("/anaconda-extra/cloud/nvidia/label/cuda-11.8.0")
    assert found[FORGE][-1] == FORGE


def test_every_set_has_a_title_and_a_source_and_touches_nothing_that_is_not_ours() -> None:
    for mirror_set in mirror_sets().values():
        assert mirror_set.title
        assert mirror_set.source
        for prefix, mirrors in mirror_set.replace.items():
            assert not any(word in address for word in NOT_OURS for address in (prefix, *mirrors))


def test_an_unknown_set_lists_the_known_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envbuilder.toml").write_text('[mirrors]\nsets = ["tsinghua"]\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        mirrors_of(load_settings())
    assert "tuna" in (caught.value.cure or "")


def test_a_typo_in_the_settings_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "envbuilder.toml").write_text('[mirrors]\nset = ["tuna"]\n')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="unknown key") as caught:
        load_settings()
    assert "sets" in (caught.value.cure or "")


@pytest.mark.parametrize(
    ("reference", "host", "repository", "tag"),
    [
        ("nvidia/cuda:11.8.0-devel-ubuntu22.04", "docker.io", "nvidia/cuda", "11.8.0-devel-ubuntu22.04"),
        ("ubuntu:22.04", "docker.io", "library/ubuntu", "22.04"),
        ("127.0.0.1:5000/base:1", "127.0.0.1:5000", "base", "1"),
        ("ghcr.io/a/b/c", "ghcr.io", "a/b/c", "latest"),
    ],
)
def test_image_names(reference: str, host: str, repository: str, tag: str) -> None:
    assert ImageName.parse(reference) == ImageName(host, repository, tag)


@pytest.mark.parametrize("reference", ["", "UPPER/case", "a b", "../../etc", "x@sha256:12"])
def test_what_is_no_image_name_is_refused(reference: str) -> None:
    with pytest.raises(InputError):
        ImageName.parse(reference)
