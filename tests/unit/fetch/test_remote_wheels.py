"""What a list of requirements names, and reading a file on a server in parts."""

from pathlib import Path

import pytest
import requests
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from envbuilder.errors import InputError, SourceError
from envbuilder.fetch.remote_wheels import _Http, _requirements, _target

DATA = bytes(range(256)) * 4096


def test_requirements_as_pip_takes_them() -> None:
    text = (
        "# a comment\n"
        "torch==2.6.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"
        "numpy  # the newest\n"
        "-r other.txt\n--index-url https://example.org/simple\n"
        "torchvision==0.21.0+cu118\n"
        "mine @ https://example.org/mine-1-py3-none-any.whl\n"
    )
    wanted, unseen = _requirements(text, Path("r.txt"))
    assert list(wanted) == ["torch", "numpy"]
    assert wanted["torch"].endswith("0" * 64)
    assert len(unseen) == 4


def test_a_line_that_is_no_requirement_is_named() -> None:
    with pytest.raises(InputError) as caught:
        _requirements("numpy\nthis is prose\n", Path("r.txt"))
    assert caught.value.place is not None
    assert caught.value.place.line == 2


def test_a_lock_says_what_its_files_must_fit() -> None:
    target = _target("# Python 3.11, Linux x86_64, glibc 2.36. Uploads before 2025-09-08.\n")
    assert (target.python, target.glibc) == ("3.11", "2.36")


def _serve(request: Request) -> Response:
    first, last = request.headers["Range"].removeprefix("bytes=").split("-")
    start = int(first) if first else len(DATA) - int(last)
    end = int(last) if first else len(DATA) - 1
    headers = {"Content-Range": f"bytes {start}-{end}/{len(DATA)}"}
    return Response(DATA[start : end + 1], 206, headers)


def test_parts_of_a_file_on_a_server(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/w.whl").respond_with_handler(_serve)
    file = _Http(httpserver.url_for("/w.whl"), requests.Session())
    assert file.size == len(DATA)
    assert file.read(1000, 5000) == DATA[1000:6000]
    assert file.read(len(DATA) - 3, 100) == DATA[-3:]
    assert b"".join(file.stream(7, 600_000)) == DATA[7:600_007]
    assert file.read(len(DATA), 10) == b""


def test_a_server_without_parts_is_said(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/w.whl").respond_with_data(DATA)
    with pytest.raises(SourceError, match="does not serve parts"):
        _Http(httpserver.url_for("/w.whl"), requests.Session())
