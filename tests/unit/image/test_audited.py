"""The audit in the road: the answer is kept for each image, and a refusal names the package that cannot run."""

from pathlib import Path
from typing import Any, cast

import pytest

from envbuilder.audit.collect import Collection
from envbuilder.audit.tree import collect_tree
from envbuilder.errors import BuildError
from envbuilder.image.audited import audited
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.report.progress import Silent
from envbuilder.stack.gpu import load_gpu

DATA = Path(__file__).parents[2] / "data" / "fatbin"


class StandInEngine:
    """An engine by name alone."""

    name = "buildah"


@pytest.fixture
def audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Audit an image that holds one library; the answer, and how often an image was read."""
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    read: list[str] = []

    def run(library: str, identity: str = "sha256:1") -> tuple[dict[str, Any], int]:
        site = tmp_path / library
        if not site.is_dir():
            (site / "vllm").mkdir(parents=True)
            (site / "vllm" / "_C.abi3.so").write_bytes((DATA / library).read_bytes())
            (site / "vllm-0.8.5.dist-info").mkdir()
            (site / "vllm-0.8.5.dist-info" / "RECORD").write_text("vllm/_C.abi3.so,,\n")

        def collect(reference: str, cards: list, *_: object) -> Collection:
            read.append(reference)
            return collect_tree(site, cards, subject=reference)

        monkeypatch.setattr("envbuilder.audit.audit.collect_image", collect)
        image = ImageInfo("localhost/x:runtime", identity, "sha256:2", (), {})
        found = audited(image, cast("Engine", StandInEngine()), load_gpu("p40"), Silent())
        return found, len(read)

    return run


def test_an_image_is_audited_once(audit: Any) -> None:
    found, read = audit("sm60.so")
    assert (found["verdict"], found["packages"], read) == ("yes", {"vllm 0.8.5": "yes"}, 1)
    assert audit("sm60.so") == (found, 1)
    assert audit("sm60.so", "sha256:3") == (found, 2), "another image is looked at for itself"


def test_an_image_that_cannot_is_refused_by_the_package_each_time(audit: Any) -> None:
    for _ in range(2):
        with pytest.raises(BuildError) as caught:
            audit("sm70.so")
        error = caught.value
        assert error.message == "vllm 0.8.5 cannot run on Tesla P40 (sm_61)"
        assert "_C.abi3.so: 0 of 1 code units; holds sm_70" in (error.detail or "")
        assert "envbuilder audit localhost/x:runtime --gpu sm_61" in (error.cure or "")
