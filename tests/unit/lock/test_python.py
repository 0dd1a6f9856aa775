"""The Python half against an index on loopback, resolved by the real uv."""

import hashlib
from datetime import date
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from envbuilder.errors import EnvbuilderError, InputError, SourceError
from envbuilder.lock.client import python_client
from envbuilder.lock.python import lock_python
from envbuilder.lock.requirements_file import requirements_text
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Pin, Stack
from tests.python_index import LATE, Index, sdist, wheel


def stack_of(**pins: str) -> Stack:
    stack, _ = load_stack("p40-debian")
    packages = {name: Pin(version=version, why="") for name, version in pins.items()}
    return stack.model_copy(update={"python": stack.python.model_copy(update={"packages": packages})})


def lock(stack: Stack) -> dict[str, str]:
    return {a.name: a.filename for a in lock_python(stack, python_client())}


def test_a_package_comes_with_what_it_requires(index: Index) -> None:
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0", "beta>=1", "gamma; sys_platform == 'win32'"))
    index.add("beta-1.0-py3-none-any.whl", wheel("beta", "1.0"))
    index.add("beta-1.5-py3-none-any.whl", wheel("beta", "1.5"))
    (alpha, beta) = lock_python(stack_of(alpha="1.0"), python_client())
    assert (alpha.name, alpha.version, beta.name, beta.version) == ("alpha", "1.0", "beta", "1.5")
    assert beta.size == len(wheel("beta", "1.5"))


def test_the_same_bytes_after_the_index_has_moved_on(index: Index) -> None:
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0", "beta"))
    index.add("beta-1.0-py3-none-any.whl", wheel("beta", "1.0"))
    stack = stack_of(alpha="1.0")
    before = requirements_text(stack, lock_python(stack, python_client()))
    index.add("beta-2.0-py3-none-any.whl", wheel("beta", "2.0"), LATE)
    index.add("alpha-1.0-cp311-cp311-manylinux_2_17_x86_64.whl", wheel("alpha", "1.0"), LATE)
    (Path(python_client().environment()["UV_CACHE_DIR"])).rename(Path.home() / "away")
    assert requirements_text(stack, lock_python(stack, python_client())) == before
    later = lock_python(stack, python_client(), cutoff=date(2026, 1, 1))
    assert [a.filename for a in later] == ["alpha-1.0-cp311-cp311-manylinux_2_17_x86_64.whl"]


@pytest.mark.parametrize(
    ("files", "best"),
    [
        (["cp311-cp311-manylinux_2_36_x86_64", "cp311-cp311-manylinux_2_17_x86_64"], 0),
        (["cp311-cp311-manylinux_2_39_x86_64", "cp311-cp311-manylinux2014_x86_64"], 1),
        (["py3-none-any", "cp39-abi3-manylinux_2_28_x86_64"], 1),
        (["cp311-cp311-manylinux_2_17_aarch64", "py3-none-manylinux1_x86_64"], 1),
        (["cp310-cp310-manylinux_2_17_x86_64", "cp312-cp312-manylinux_2_17_x86_64", "py2.py3-none-any"], 2),
        (["cp311-cp311-musllinux_1_2_x86_64", "cp311-cp311-linux_x86_64"], 1),
        (["cp311-cp311-win_amd64", "cp311-none-any"], 1),
    ],
)
def test_the_file_that_fits_best_is_chosen(index: Index, files: list[str], best: int) -> None:
    for number, tag in enumerate(files):
        index.add(f"alpha-1.0-{tag}.whl", wheel("alpha", "1.0", content=str(number)))
    index.add("alpha-1.0.tar.gz", sdist("alpha", "1.0"))
    assert lock(stack_of(alpha="1.0")) == {"alpha": f"alpha-1.0-{files[best]}.whl"}


def test_a_source_distribution_needs_setuptools_in_the_lock(index: Index) -> None:
    index.add("alpha-1.0.tar.gz", sdist("alpha", "1.0"))
    index.add("setuptools-80.9.0-py3-none-any.whl", wheel("setuptools", "80.9.0"))
    with pytest.raises(InputError, match="only sources exist of alpha") as caught:
        lock(stack_of(alpha="1.0"))
    assert caught.value.cure == "Pin setuptools in the stack."
    assert lock(stack_of(alpha="1.0", setuptools="80.9.0"))["alpha"] == "alpha-1.0.tar.gz"


def test_pins_that_contradict_one_another_are_named(index: Index) -> None:
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0", "beta<2"))
    index.add("beta-2.0-py3-none-any.whl", wheel("beta", "2.0"))
    with pytest.raises(InputError, match="cannot be met together") as caught:
        lock(stack_of(alpha="1.0", beta="2.0"))
    assert "beta<2" in (caught.value.detail or "")


def test_a_file_the_index_gives_no_hash_of_is_locked_by_its_bytes(index: Index) -> None:
    data = wheel("alpha", "1.0")
    index.add("alpha-1.0-py3-none-any.whl", data, hashed=False)
    (alpha,) = lock_python(stack_of(alpha="1.0"), python_client())
    assert alpha.sha256 == hashlib.sha256(data).hexdigest()


def test_an_index_without_upload_times_cannot_hold_to_a_cutoff(index: Index) -> None:
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0"), None)
    with pytest.raises(InputError, match="does not say when its files were uploaded") as caught:
        lock(stack_of(alpha="1.0"))
    assert caught.value.cure


def test_a_size_the_index_does_not_say_is_kept_from_the_lock_before(index: Index) -> None:
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0"))
    index.sized = False
    (unsized,) = lock_python(stack_of(alpha="1.0"), python_client())
    assert unsized.size is None
    (sized,) = lock_python(stack_of(alpha="1.0"), python_client(), sizes={unsized.sha256: 7})
    assert sized.size == 7


def test_a_password_of_the_index_is_used_and_never_shown(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.login = "ann:s3cret"
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0"))
    stack = stack_of(alpha="1.0")
    text = requirements_text(stack, lock_python(stack, python_client()))
    assert "s3cret" not in text
    assert "://" not in text
    index.login = "ann:other"
    with pytest.raises(EnvbuilderError) as caught:
        lock(stack_of(alpha="1.0", beta="1.0"))
    assert "s3cret" not in f"{caught.value.message} {caught.value.detail} {caught.value.cure}"


BROKEN = Response("{broken", content_type="application/vnd.pypi.simple.v1+json")


@pytest.mark.parametrize(
    "answer",
    [Response(status=503), Response(status=401), Response(status=403), BROKEN],
    ids=["unavailable", "unauthorized", "forbidden", "broken"],
)
def test_an_index_that_does_not_answer_as_one_is_a_source_error(
    httpserver: HTTPServer, bare_host: Path, monkeypatch: pytest.MonkeyPatch, answer: Response
) -> None:
    httpserver.expect_request("/simple/alpha/").respond_with_handler(lambda _: answer)
    monkeypatch.setenv("UV_DEFAULT_INDEX", httpserver.url_for("/simple"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(SourceError):
        lock(stack_of(alpha="1.0"))


def test_a_login_page_in_the_index_place_is_hinted_at(
    httpserver: HTTPServer, bare_host: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    httpserver.expect_request("/simple/alpha/").respond_with_data("<html>Log in</html>", content_type="text/html")
    monkeypatch.setenv("UV_DEFAULT_INDEX", httpserver.url_for("/simple"))
    with pytest.raises(InputError, match=r"no alpha==1\.0 that may be used") as caught:
        lock(stack_of(alpha="1.0"))
    assert "envbuilder sources" in (caught.value.cure or "")


def test_an_index_that_is_not_there_is_a_source_error(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with pytest.raises(SourceError, match="does not answer"):
        lock(stack_of(alpha="1.0"))


def test_what_would_change_the_choice_is_not_taken_from_the_user(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add("alpha-1.0-py3-none-any.whl", wheel("alpha", "1.0", "beta"))
    for version in ("1.0", "1.5", "2.0rc1"):
        index.add(f"beta-{version}-py3-none-any.whl", wheel("beta", version))
    settings = {"RESOLUTION": "lowest", "PRERELEASE": "allow", "INDEX": "http://127.0.0.1:9/", "NO_BINARY": "1"}
    for name, value in settings.items():
        monkeypatch.setenv(f"UV_{name}", value)
    (Path.home() / ".config" / "uv").mkdir()
    (Path.home() / ".config" / "uv" / "uv.toml").write_text('resolution = "lowest"\n')
    assert lock(stack_of(alpha="1.0"))["beta"] == "beta-1.5-py3-none-any.whl"
