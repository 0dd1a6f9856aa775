"""Downloads against a mirror on loopback that behaves, breaks or lies."""

import hashlib
import itertools
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from envbuilder.errors import HostError, IntegrityError, SourceError
from envbuilder.fetch import download as module
from envbuilder.fetch.cache import Item, check_space, is_there, partial_of, path_of
from envbuilder.fetch.download import Location, Stopped, download
from envbuilder.fetch.fetching import Cached
from envbuilder.fetch.transfers import fetch_items
from envbuilder.fetch.transport import new_session
from envbuilder.fetch.view import folder_of
from envbuilder.report.progress import Silent

BYTES = bytes(itertools.islice(itertools.cycle(range(251)), 1_000_003))


def item_of(data: bytes = BYTES, *, size: int | None = -1, name: str = "torch-2.6.0-py3-none-any.whl") -> Item:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    return Item("torch 2.6.0", name, digest, len(data) if size == -1 else size)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.01)
    return tmp_path / "cache"


@pytest.fixture
def at(httpserver: HTTPServer) -> Callable[[Callable[[Request], Response]], Location]:
    def serve(handler: Callable[[Request], Response]) -> Location:
        httpserver.expect_request("/f").respond_with_handler(handler)
        return Location(httpserver.url_for("/f"), new_session(), "lock anew")

    return serve


def ranged(data: bytes, seen: list[str | None] | None = None) -> Callable[[Request], Response]:
    """A server that knows ranges."""

    def handler(request: Request) -> Response:
        asked = request.headers.get("Range")
        if seen is not None:
            seen.append(asked)
        if asked is None:
            return Response(data, content_type="application/octet-stream")
        start = int(asked.removeprefix("bytes=").rstrip("-"))
        if start >= len(data):
            return Response(status=416)
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}
        return Response(data[start:], 206, headers, content_type="application/octet-stream")

    return handler


def ignore(_: int) -> None:
    pass


def assert_nothing_kept(item: Item) -> None:
    assert not path_of(item).exists()
    assert not partial_of(item).exists() or partial_of(item).stat().st_size == 0


@pytest.mark.parametrize("size", [-1, None])
def test_a_file_comes_whole_and_only_once(at: Callable[..., Location], size: int | None) -> None:
    seen: list[str | None] = []
    item, location, counts = item_of(size=size), at(ranged(BYTES, seen)), []
    assert download(item, location, counts.append) == len(BYTES)
    assert path_of(item).read_bytes() == BYTES
    assert sum(counts) == len(BYTES)
    assert download(item, location, counts.append) == 0
    assert seen == [None]
    assert not partial_of(item).exists()


def test_an_interrupted_file_goes_on_where_it_stopped(at: Callable[..., Location]) -> None:
    seen: list[str | None] = []
    item, location, came = item_of(), at(ranged(BYTES, seen)), []
    with pytest.raises(Stopped):
        download(item, location, came.append, lambda: len(came) > 0)
    kept = partial_of(item).stat().st_size
    assert 0 < kept < len(BYTES)
    assert not path_of(item).exists()
    assert sum(came) == 0
    assert download(item, location, ignore) == len(BYTES) - kept
    assert seen == [None, f"bytes={kept}-"]
    assert path_of(item).read_bytes() == BYTES


def test_a_server_without_ranges_sends_it_all_again(at: Callable[..., Location]) -> None:
    item, counts = item_of(), []
    partial_of(item).parent.mkdir(parents=True)
    partial_of(item).write_bytes(BYTES[:1000])
    download(item, at(lambda _: Response(BYTES)), counts.append)
    assert path_of(item).read_bytes() == BYTES
    assert sum(counts) == len(BYTES)


@pytest.mark.parametrize("left", [b"x" * 1000, BYTES[:-1] + b"x", BYTES + b"x"])
def test_wrong_bytes_of_an_earlier_run_are_not_the_mirrors_fault(at: Callable[..., Location], left: bytes) -> None:
    item = item_of()
    partial_of(item).parent.mkdir(parents=True)
    partial_of(item).write_bytes(left)
    download(item, at(ranged(BYTES)), ignore)
    assert path_of(item).read_bytes() == BYTES


def test_a_whole_partial_file_needs_no_network(at: Callable[..., Location]) -> None:
    seen: list[str | None] = []
    item = item_of()
    partial_of(item).parent.mkdir(parents=True)
    partial_of(item).write_bytes(BYTES)
    download(item, at(ranged(BYTES, seen)), ignore)
    assert seen == []


class Breaking:
    """A body that breaks off after ``at`` bytes although more were announced."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def __iter__(self) -> Iterator[bytes]:
        yield self._data[: self._at]
        raise ConnectionResetError


def test_a_connection_that_breaks_is_taken_up_again(at: Callable[..., Location]) -> None:
    seen: list[str | None] = []
    whole = ranged(BYTES, seen)

    def handler(request: Request) -> Response:
        if len(seen) < 3:
            answer = whole(request)
            data = answer.get_data()
            headers = {**dict(answer.headers), "Content-Length": str(len(data))}
            return Response(Breaking(data, 200_000), answer.status_code, headers, direct_passthrough=True)
        return whole(request)

    item = item_of()
    download(item, at(handler), ignore)
    assert path_of(item).read_bytes() == BYTES
    assert len(seen) == 4
    assert seen[1] is not None


def test_a_connection_that_keeps_breaking_is_the_sources_fault(at: Callable[..., Location]) -> None:
    def handler(_: Request) -> Response:
        return Response(Breaking(BYTES, 0), 200, {"Content-Length": str(len(BYTES))}, direct_passthrough=True)

    with pytest.raises(SourceError, match="keeps breaking") as caught:
        download(item_of(), at(handler), ignore)
    assert "127.0.0.1" in caught.value.message or "localhost" in caught.value.message


def endless(_: Request) -> Response:
    """A body without an end, of unannounced length."""
    return Response((b"x" * 65536 for _ in itertools.count()), content_type="application/octet-stream")


@pytest.mark.parametrize(
    ("handler", "size", "says"),
    [
        (lambda _: Response(b"x" + BYTES[1:]), -1, "is not the file of the lock"),
        (lambda _: Response(b"x" + BYTES[1:]), None, "is not the file of the lock"),
        (lambda _: Response(BYTES[:-1]), -1, "is 1000002 bytes there, the lock says 1000003"),
        (lambda _: Response(BYTES[:-1]), None, "is not the file of the lock"),
        (lambda _: Response(iter([BYTES[:-1]])), -1, "is 1000002 bytes there"),
        (lambda _: Response(b""), -1, "is 0 bytes there"),
        (lambda _: Response(BYTES * 2), -1, "is 2000006 bytes there"),
        (lambda _: Response("<html>Log in</html>", content_type="text/html"), -1, "is a web page there"),
        (endless, -1, "is longer there than 1000003 bytes"),
    ],
    ids=["bytes", "bytes-unsized", "short", "short-unsized", "short-unannounced", "empty", "long", "page", "endless"],
)
def test_a_lying_mirror_is_named_and_nothing_is_kept(
    at: Callable[..., Location], handler: Callable[[Request], Response], size: int | None, says: str
) -> None:
    item = item_of(size=size)
    with pytest.raises(IntegrityError, match=says) as caught:
        download(item, at(handler), ignore)
    assert caught.value.message.startswith("torch-2.6.0-py3-none-any.whl from localhost:")
    assert_nothing_kept(item)


def test_an_endless_body_of_an_unknown_size_is_bounded(
    at: Callable[..., Location], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_UNKNOWN_SIZE", 5_000_000)
    item = item_of(size=None)
    with pytest.raises(IntegrityError, match="longer there than 5000000 bytes"):
        download(item, at(endless), ignore)
    assert_nothing_kept(item)


def test_a_mirror_whose_file_is_shorter_than_what_came_is_named(at: Callable[..., Location]) -> None:
    item = item_of()
    partial_of(item).parent.mkdir(parents=True)
    partial_of(item).write_bytes(BYTES[:900_000])
    with pytest.raises(IntegrityError, match="500000 bytes there"):
        download(item, at(ranged(BYTES[:500_000])), ignore)
    assert_nothing_kept(item)


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (404, "no longer serves torch 2.6.0"),
        (410, "no longer serves"),
        (403, "refuses"),
        (401, "refuses"),
        (400, "400"),
    ],
)
def test_what_is_not_served_is_a_source_error(at: Callable[..., Location], status: int, says: str) -> None:
    with pytest.raises(SourceError, match=says) as caught:
        download(item_of(), at(lambda _: Response(status=status)), ignore)
    assert caught.value.cure
    if status == 404:
        assert caught.value.cure == "lock anew"


def test_a_passing_fault_of_the_server_is_tried_again(at: Callable[..., Location]) -> None:
    answers = iter([Response(status=503), Response(status=503), Response(BYTES)])
    assert download(item_of(), at(lambda _: next(answers)), ignore) == len(BYTES)


def test_a_host_that_is_not_there_is_named_without_its_password() -> None:
    location = Location("http://ann:secret@127.0.0.1:9/f", new_session(), "")
    with pytest.raises(SourceError, match=r"127\.0\.0\.1:9 does not answer") as caught:
        download(item_of(), location, ignore)
    assert "secret" not in f"{caught.value.message}{caught.value.detail}{caught.value.cure}"


def test_a_local_mirror_serves_too(tmp_path: Path) -> None:
    (tmp_path / "a file.whl").write_bytes(BYTES)
    location = Location((tmp_path / "a file.whl").as_uri(), new_session(), "lock anew")
    assert download(item_of(), location, ignore) == len(BYTES)
    with pytest.raises(SourceError, match="no longer serves"):
        download(item_of(b"other"), Location((tmp_path / "no").as_uri(), new_session(), "x"), ignore)


def test_two_at_once_fetch_it_once(at: Callable[..., Location]) -> None:
    seen: list[str | None] = []
    item, location = item_of(), at(ranged(BYTES, seen))
    threads = [threading.Thread(target=download, args=(item, location, ignore)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert path_of(item).read_bytes() == BYTES
    assert seen == [None]


def test_a_full_disk_is_said_and_what_came_is_kept(at: Callable[..., Location]) -> None:
    seen: list[str | None] = []
    item, location = item_of(), at(ranged(BYTES, seen))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, hard))
    try:
        with pytest.raises(HostError, match="disk is full"):
            download(item, location, ignore)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert not path_of(item).exists()
    assert 0 < download(item, location, ignore) < len(BYTES)
    assert path_of(item).read_bytes() == BYTES
    assert seen[1] is not None


def test_a_cache_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(HostError, match="cannot be written") as caught:
        check_space([item_of()])
    assert "ENVBUILDER_CACHE" in (caught.value.cure or "")


def test_space_is_checked_before(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    usage = type("Usage", (), {"free": 300 * 1024 * 1024})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    check_space([item_of()])
    with pytest.raises(HostError, match=r"0.3 GB free, 0.8 GB are needed") as caught:
        check_space([item_of(size=500_000_000)])
    assert caught.value.place is not None
    assert caught.value.place.file == str(cache)


def test_the_first_fault_stops_all_and_keeps_what_came(httpserver: HTTPServer) -> None:
    good = item_of(b"good" * 1000, name="good.whl")
    bad = item_of(b"bad", name="bad.whl")
    httpserver.expect_request("/good").respond_with_data(b"good" * 1000)
    httpserver.expect_request("/bad").respond_with_data(b"evi")
    locations = {
        item.hex: Location(httpserver.url_for(f"/{name}"), new_session(), "")
        for item, name in ((good, "good"), (bad, "bad"))
    }
    with pytest.raises(IntegrityError, match=r"bad\.whl"):
        fetch_items([good, bad], locations, Silent())
    assert not is_there(bad)
    httpserver.clear()
    httpserver.expect_request("/good").respond_with_data(b"good" * 1000)
    httpserver.expect_request("/bad").respond_with_data(b"bad")
    fetch_items([good, bad], locations, Silent())
    assert is_there(good)
    assert is_there(bad)


def test_a_folder_holds_exactly_its_files(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"1")
    folder = folder_of(
        [Cached("a.deb", tmp_path / "blob", 1), Cached("b.deb", tmp_path / "blob", 1)], tmp_path / "debs"
    )
    assert sorted(p.name for p in folder.iterdir()) == ["a.deb", "b.deb"]
    folder_of([Cached("a.deb", tmp_path / "blob", 1)], tmp_path / "debs")
    assert [p.name for p in folder.iterdir()] == ["a.deb"]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blob", "debs"]
