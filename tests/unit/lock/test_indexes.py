"""Torch from the PyTorch index: by record where the index is not reached, held against it where it is."""

import hashlib
from collections.abc import Callable

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from envbuilder.data import builtin_root
from envbuilder.errors import InputError, IntegrityError, Place, SourceError
from envbuilder.lock.client import python_client
from envbuilder.lock.indexes import Wanted, asked_file, find_file, index_data, index_named, parse_page, recorded_file
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import PythonArtifact
from envbuilder.lock.python import lock_python, missing_groups, python_tags, target_of
from envbuilder.lock.reading import load_lock
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Pin, Stack
from tests.python_index import Index, wheel

PYTORCH = index_named("pytorch-cu118", Place())
TORCH = "torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl"
TORCH_SHA = "715d3b039a629881f263c40d1fb65edac6786da13bfba221b353ef2371c4da86"
NOWHERE = Mirrors(((PYTORCH.url, "http://127.0.0.1:9/whl"),))


@pytest.fixture
def stack() -> Stack:
    return load_stack("p40")[0]


def wanted(stack: Stack, name: str = "torch", version: str = "2.6.0+cu118") -> Wanted:
    return Wanted(name, version, python_tags(target_of(stack)))


@pytest.fixture
def pytorch(httpserver: HTTPServer) -> Callable[..., Mirrors]:
    """A PyTorch index on loopback that serves files of the given digests; the mirrors that lead to it."""

    def serve(page: str, metadata: str = "") -> Mirrors:
        def answer(request: Request) -> Response:
            if request.path.endswith(".metadata"):
                return Response(metadata)
            return Response(page, content_type="text/html")

        httpserver.expect_request("/whl/cu118/torch/").respond_with_handler(answer)
        httpserver.expect_request("/whl/cu118/torchvision/").respond_with_handler(answer)
        httpserver.expect_request("/whl/cu118/torchaudio/").respond_with_handler(answer)
        httpserver.expect_request(f"/f/{TORCH}.metadata").respond_with_handler(answer)
        return Mirrors(((PYTORCH.url, httpserver.url_for("/whl/cu118")),))

    return serve


def link(filename: str, sha256: str) -> str:
    return f'<a href="/f/{filename.replace("+", "%2B")}#sha256={sha256}">{filename}</a><br>'


def test_the_record_holds_the_digest_and_what_torch_asks_for(stack: Stack) -> None:
    found = recorded_file(PYTORCH, wanted(stack))
    assert found is not None
    assert (found.filename, found.sha256) == (TORCH, TORCH_SHA)
    assert any(r.startswith("nvidia-cudnn-cu11==9.1.0.70") for r in found.requires)
    assert recorded_file(PYTORCH, wanted(stack, "torchvision", "0.21.0+cu118")) is None


def test_every_recorded_file_has_a_source() -> None:
    assert all(file.source and file.requires_source for file in index_data().file)


def test_the_record_serves_where_the_index_does_not_answer(stack: Stack, bare_host: object) -> None:
    assert find_file(PYTORCH, wanted(stack), NOWHERE, offline=True).sha256 == TORCH_SHA
    with pytest.raises(SourceError, match="not recorded"):
        find_file(PYTORCH, wanted(stack, "torchvision", "0.21.0+cu118"), NOWHERE, offline=True)


def test_an_index_that_says_other_bytes_is_not_believed(stack: Stack, pytorch: Callable[..., Mirrors]) -> None:
    with pytest.raises(IntegrityError, match="serves other bytes") as caught:
        find_file(PYTORCH, wanted(stack), pytorch(link(TORCH, "0" * 64)))
    assert TORCH_SHA in (caught.value.detail or "")
    assert "http://localhost" in caught.value.message


def test_an_index_that_says_the_recorded_bytes_agrees(stack: Stack, pytorch: Callable[..., Mirrors]) -> None:
    found = find_file(PYTORCH, wanted(stack), pytorch(link(TORCH, TORCH_SHA)))
    assert found == recorded_file(PYTORCH, wanted(stack))


def test_a_file_whose_requirements_are_not_served_is_not_locked(stack: Stack, pytorch: Callable[..., Mirrors]) -> None:
    name = "torchvision-0.21.0+cu118-cp310-cp310-linux_x86_64.whl"
    other = "torchvision-0.21.0+cu118-cp311-cp311-linux_x86_64.whl"
    with pytest.raises(SourceError):
        asked_file(
            PYTORCH,
            wanted(stack, "torchvision", "0.21.0+cu118"),
            pytorch(link(other, "1" * 64) + link(name, "2" * 64)),
        )


def test_a_login_page_in_the_place_of_the_index_is_named(stack: Stack, pytorch: Callable[..., Mirrors]) -> None:
    with pytest.raises(IntegrityError, match="is not a page of a package index"):
        find_file(PYTORCH, wanted(stack), pytorch("<html><form>user, password</form></html>"))


@pytest.mark.parametrize("page", ["", "<a href='torch-2.6.0.tar.gz'>x</a>", "<a>", "\0<<<"])
def test_pages_without_wheels_are_no_index(page: str) -> None:
    with pytest.raises(IntegrityError):
        parse_page(page, "https://index/torch/")


def test_an_unknown_index_lists_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        index_named("pytorch-cu999", Place("p40.toml", field="python.packages.torch.index"))
    assert "pytorch-cu118" in (caught.value.cure or "")


def p40_on(index: Index, stack: Stack) -> Stack:
    """p40's torch against a default index that holds stand-ins of the packages torch asks for, and newer ones."""
    found = recorded_file(PYTORCH, wanted(stack))
    assert found is not None
    for requirement in found.requires:
        name, _, pin = requirement.split(" ;")[0].partition("==")
        name = name.split(">=")[0]
        for version in ([pin] if pin else ["4.12.0"]) + ["99.0"]:
            index.add(f"{name.replace('-', '_')}-{version}-py3-none-any.whl", wheel(name.replace("-", "_"), version))
    # The default index has a torch too, a newer and another build: neither is taken.
    index.add("torch-2.6.0-py3-none-any.whl", wheel("torch", "2.6.0"))
    index.add("torch-99.0-py3-none-any.whl", wheel("torch", "99.0"))
    index.add("verl-0.5.0-py3-none-any.whl", wheel("verl", "0.5.0", "torch"))
    packages = {
        name: Pin(version=pin.version, why="", index=pin.index, group=pin.group)
        for name, pin in stack.python.packages.items()
        if name != "setuptools"
    }
    return stack.model_copy(update={"python": stack.python.model_copy(update={"packages": packages})})


def test_torch_comes_from_its_index_and_the_rest_from_the_default_one(index: Index, stack: Stack) -> None:
    artifacts = {a.name: a for a in lock_python(p40_on(index, stack), python_client(), mirrors=NOWHERE)}
    assert artifacts["torch"] == PythonArtifact(
        name="torch", version="2.6.0+cu118", filename=TORCH, sha256=TORCH_SHA, size=None, index="pytorch-cu118"
    )
    assert {a.index for name, a in artifacts.items() if name != "torch"} == {None}
    assert artifacts["nvidia-cudnn-cu11"].version == "9.1.0.70"
    assert artifacts["triton"].version == "3.2.0"
    assert "setuptools" not in artifacts
    assert "torchvision" not in artifacts
    served = artifacts["sympy"]
    assert served.sha256 == hashlib.sha256(wheel("sympy", "1.13.1")).hexdigest()
    assert index.url.split("/")[2] not in str(artifacts)


def test_a_group_that_cannot_be_locked_says_so(index: Index, stack: Stack) -> None:
    mine = p40_on(index, stack)
    (said,) = missing_groups(mine, lock_python(mine, python_client(), mirrors=NOWHERE))
    assert "group vision is not locked" in said
    assert "torchvision 0.21.0+cu118, torchaudio 2.6.0+cu118" in said
    assert "pytorch-cu118" in said


def test_the_group_locks_where_the_index_answers(index: Index, stack: Stack) -> None:
    files = {}
    for name, version in (("torchvision", "0.21.0+cu118"), ("torchaudio", "2.6.0+cu118")):
        filename = f"{name}-{version}-cp310-cp310-linux_x86_64.whl"
        files[name] = (filename, hashlib.sha256(name.encode()).hexdigest())
    metadata = "Metadata-Version: 2.1\nName: x\nVersion: 1\nRequires-Dist: torch==2.6.0+cu118\nRequires-Dist: pillow\n"
    server = index.server
    for name, (filename, sha256) in files.items():
        page = f'<a href="{filename.replace("+", "%2B")}#sha256={sha256}">{filename}</a>'
        at = f"/whl/cu118/{name}/"
        server.expect_oneshot_request(at).respond_with_data(page, content_type="text/html")
        server.expect_oneshot_request(f"{at}{filename}.metadata").respond_with_data(metadata)
    index.add("pillow-11.0-py3-none-any.whl", wheel("pillow", "11.0"))
    mirrors = Mirrors(((PYTORCH.url, server.url_for("/whl/cu118")),))
    mine = p40_on(index, stack)
    artifacts = {a.name: a for a in lock_python(mine, python_client(), mirrors=mirrors)}
    assert artifacts["torchvision"].sha256 == files["torchvision"][1]
    assert {a.name for a in artifacts.values() if a.group == "vision"} == {"torchvision", "torchaudio", "pillow"}
    assert artifacts["torch"].sha256 == TORCH_SHA
    assert missing_groups(mine, artifacts.values()) == []


def test_the_committed_lock_is_that_of_the_stack(stack: Stack) -> None:
    locked = {a.name: a for a in load_lock(stack).python}
    assert (locked["torch"].sha256, locked["torch"].index) == (TORCH_SHA, "pytorch-cu118")
    found = recorded_file(PYTORCH, wanted(stack))
    assert found is not None
    for requirement in found.requires:
        if requirement.startswith("nvidia-"):
            name, version = requirement.split(" ;")[0].split("==")
            assert locked[name].version == version
    assert not any(name.endswith("-cu12") for name in locked)
    text = (builtin_root() / "locks" / "p40.requirements.txt").read_text()
    assert "://" not in text
