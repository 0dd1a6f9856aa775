"""The audit in the road: a label when the card is served, a refusal that names the package when it is not."""

from pathlib import Path

import pytest

from envbuilder.audit.collect import Collection
from envbuilder.audit.tree import collect_tree
from envbuilder.errors import BuildError
from envbuilder.image.audited import AUDIT_LABEL, build_audited, passed
from envbuilder.image.engine import BuildRequest, ImageInfo
from envbuilder.report.progress import Silent
from envbuilder.stack.gpu import load_gpu

DATA = Path(__file__).parents[2] / "data" / "fatbin"


class StandInEngine:
    """Builds nothing; remembers what it was asked for."""

    name = "buildah"

    def __init__(self) -> None:
        self.requests: list[BuildRequest] = []

    def build(self, request: BuildRequest, progress: object) -> ImageInfo:
        self.requests.append(request)
        return ImageInfo(request.tag, "sha256:1", "sha256:2", (), dict(request.labels))


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str) -> tuple[StandInEngine, ImageInfo, dict]:
    site = tmp_path / "image"
    (site / "vllm").mkdir(parents=True)
    (site / "vllm" / "_C.abi3.so").write_bytes((DATA / library).read_bytes())
    (site / "vllm-0.8.5.dist-info").mkdir()
    (site / "vllm-0.8.5.dist-info" / "RECORD").write_text("vllm/_C.abi3.so,,\n")

    def collect(reference: str, cards: list, *_: object) -> Collection:
        return collect_tree(site, cards, subject=reference)

    monkeypatch.setattr("envbuilder.audit.audit.collect_image", collect)
    engine = StandInEngine()
    request = BuildRequest(tmp_path, tmp_path, "runtime", "localhost/x:runtime", 0, labels={"a": "b"}, cache=False)
    image, audit = build_audited(engine, request, load_gpu("p40"), Silent())
    return engine, image, audit


def test_an_image_that_serves_its_card_is_labelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, image, audit = run(tmp_path, monkeypatch, "sm60.so")
    assert image.labels == {"a": "b", AUDIT_LABEL: "yes for sm_61"}
    assert passed(image.labels)
    assert audit["packages"] == {"vllm 0.8.5": "yes"}
    assert [r.cache for r in engine.requests] == [False, True]


def test_an_image_that_cannot_is_refused_by_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BuildError) as caught:
        run(tmp_path, monkeypatch, "sm70.so")
    error = caught.value
    assert error.message == "vllm 0.8.5 cannot run on Tesla P40 (sm_61)"
    assert "_C.abi3.so: 0 of 1 code units; holds sm_70" in (error.detail or "")
    assert "envbuilder audit localhost/x:runtime --gpu sm_61" in (error.cure or "")
