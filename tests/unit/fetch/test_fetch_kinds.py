"""Fetching what a lock names besides wheels and debs: conda packages, files of other indexes, images, source trees."""

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from envbuilder.errors import IntegrityError, SourceError
from envbuilder.fetch.fetching import fetch
from envbuilder.fetch.git import checkout, fetch_commit, repository_of
from envbuilder.fetch.images import image_files, oci_layout
from envbuilder.fetch.transfers import fetch_items
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import BaseImage, CondaArtifact, GitArtifact, Lock, PythonArtifact
from envbuilder.lock.registry import resolve_tag
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack

FORGE = "https://conda.anaconda.org/conda-forge"
DATA = b"a package" * 1000


@pytest.fixture(autouse=True)
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings(host: Path, **replace: list[str]) -> None:
    lines = [f'"{prefix}" = {json.dumps(mirrors)}' for prefix, mirrors in replace.items()]
    (host / "envbuilder.toml").write_text("[mirrors.replace]\n" + "\n".join(lines) + "\n")


def conda(data: bytes, *, sha256: bool = True) -> CondaArtifact:
    return CondaArtifact(
        name="ninja",
        version="1.12.1",
        build="h297d8ca_0",
        filename="ninja-1.12.1-h297d8ca_0.conda",
        url=f"{FORGE}/linux-64/ninja-1.12.1-h297d8ca_0.conda",
        md5=hashlib.md5(data).hexdigest(),
        sha256=hashlib.sha256(data).hexdigest() if sha256 else None,
        size=None,
    )


def fetched(**parts: Any) -> Any:
    stack = load_stack("p40")[0]
    return fetch(stack, Lock(stack="p40", digest="sha256:0", python=(), **parts), Silent())


@pytest.mark.parametrize("sha256", [True, False])
def test_a_conda_package_comes_from_the_next_mirror_when_one_lacks_it(
    host: Path, httpserver: HTTPServer, sha256: bool
) -> None:
    httpserver.expect_request("/second/linux-64/ninja-1.12.1-h297d8ca_0.conda").respond_with_data(
        DATA, content_type="application/octet-stream"
    )
    settings(host, **{FORGE: [httpserver.url_for("/first"), httpserver.url_for("/second")]})
    done = fetched(conda=(conda(DATA, sha256=sha256),))
    (file,) = done.conda
    assert file.filename == "ninja-1.12.1-h297d8ca_0.conda"
    assert file.path.read_bytes() == DATA
    assert done.downloaded == len(DATA)
    assert fetched(conda=(conda(DATA, sha256=sha256),)).downloaded == 0


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        (DATA[:-1] + b"!", "application/octet-stream", "is not the file of the lock"),
        (DATA[: len(DATA) // 2], "application/octet-stream", "is not the file of the lock"),
        (b"<html>log in</html>", "text/html", "is a web page"),
    ],
)
@pytest.mark.parametrize("sha256", [True, False])
def test_a_mirror_that_lies_is_named(
    host: Path, httpserver: HTTPServer, body: bytes, kind: str, says: str, sha256: bool
) -> None:
    httpserver.expect_request("/m/linux-64/ninja-1.12.1-h297d8ca_0.conda").respond_with_data(body, content_type=kind)
    settings(host, **{FORGE: [httpserver.url_for("/m")]})
    with pytest.raises(IntegrityError) as caught:
        fetched(conda=(conda(DATA, sha256=sha256),))
    assert says in caught.value.message
    assert f"localhost:{httpserver.port}" in caught.value.message
    assert not list((host / "cache" / "sha256").rglob("*.conda"))


def test_a_file_of_another_index_lies_beside_its_pages(host: Path, httpserver: HTTPServer) -> None:
    filename = "torch-2.6.0+cu118-cp310-cp310-linux_x86_64.whl"
    httpserver.expect_request(f"/whl/cu118/{filename}").respond_with_data(DATA, content_type="application/octet-stream")
    settings(host, **{"https://download.pytorch.org/whl": [httpserver.url_for("/whl")]})
    torch = PythonArtifact(
        name="torch",
        version="2.6.0+cu118",
        filename=filename,
        sha256=hashlib.sha256(DATA).hexdigest(),
        size=None,
        index="pytorch-cu118",
    )
    stack = load_stack("p40")[0]
    (file,) = fetch(stack, Lock(stack="p40", digest="sha256:0", python=(torch,)), Silent()).python
    assert file.path.read_bytes() == DATA


class FakeRegistry:
    """An image registry with one image, that asks for a token as Docker Hub does."""

    def __init__(self, server: HTTPServer) -> None:
        self.host = f"127.0.0.1:{server.port}"
        self.blobs: dict[str, tuple[bytes, str]] = {}
        self.server = server
        layer, config = b"layer" * 500, b'{"architecture": "amd64", "os": "linux"}'
        manifest = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": self._part(config, "application/vnd.oci.image.config.v1+json"),
            "layers": [self._part(layer, "application/vnd.oci.image.layer.v1.tar+gzip")],
        }
        self.layer = f"sha256:{hashlib.sha256(layer).hexdigest()}"
        amd64 = self._part(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")
        index = {
            "schemaVersion": 2,
            "manifests": [
                {**amd64, "digest": "sha256:" + "0" * 64, "platform": {"os": "linux", "architecture": "arm64"}},
                {**amd64, "platform": {"os": "linux", "architecture": "amd64"}},
            ],
        }
        self.manifest = amd64["digest"]
        self.index = self._part(json.dumps(index).encode(), "application/vnd.oci.image.index.v1+json")["digest"]
        server.expect_request("/token").respond_with_json({"token": "T"})
        server.expect_request("/v2/nvidia/cuda/manifests/1").respond_with_handler(self._answer)
        for digest in self.blobs:
            for kind in ("manifests", "blobs"):
                server.expect_request(f"/v2/nvidia/cuda/{kind}/{digest}").respond_with_handler(self._answer)

    def _part(self, data: bytes, kind: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = (data, kind)
        return {"mediaType": kind, "digest": digest, "size": len(data)}

    def _answer(self, request: Request) -> Response:
        if request.headers.get("Authorization") != "Bearer T":
            realm = f'Bearer realm="http://{self.host}/token",service="s",scope="repository:nvidia/cuda:pull"'
            return Response("", 401, {"WWW-Authenticate": realm})
        digest = request.path.rsplit("/", 1)[1]
        data, kind = self.blobs[self.index if digest == "1" else digest]
        return Response(data, content_type=kind if "/manifests/" in request.path else "application/octet-stream")


@pytest.fixture
def registry(httpserver: HTTPServer) -> FakeRegistry:
    return FakeRegistry(httpserver)


def base(registry: FakeRegistry, digest: str | None = None) -> BaseImage:
    return BaseImage(target="devel", reference="nvidia/cuda:1", digest=digest or registry.index)


def through(registry: FakeRegistry) -> Mirrors:
    return Mirrors((("docker.io", registry.host),))


def test_a_base_image_comes_by_digest_through_a_mirror(host: Path, registry: FakeRegistry) -> None:
    settings(host, **{"docker.io": [registry.host]})
    assert resolve_tag("nvidia/cuda:1", through(registry)) == registry.index
    done = fetched(images=(base(registry),))
    (files,) = done.images
    assert files.manifest == registry.manifest
    folder = oci_layout(files, host / "layout")
    entry = json.loads((folder / "index.json").read_text())["manifests"][0]
    assert entry["digest"] == registry.manifest
    for path in (folder / "blobs" / "sha256").iterdir():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    registry.server.clear()
    again = fetched(images=(base(registry),))
    assert again.downloaded == 0


def test_a_layer_of_other_bytes_is_not_kept(registry: FakeRegistry) -> None:
    data, kind = registry.blobs[registry.layer]
    registry.blobs[registry.layer] = (data[:-1] + b"!", kind)
    files, locations = image_files(base(registry), through(registry))
    with pytest.raises(IntegrityError, match=registry.host):
        fetch_items([blob for blob in files.blobs if blob.hex in locations], locations, Silent())


def test_a_manifest_of_other_bytes_is_refused(registry: FakeRegistry) -> None:
    registry.blobs[registry.index] = (b'{"manifests": []}', "application/vnd.oci.image.index.v1+json")
    with pytest.raises(IntegrityError, match="serves other bytes"):
        image_files(base(registry), through(registry))


def test_a_login_page_in_the_place_of_a_manifest_is_named(registry: FakeRegistry, httpserver: HTTPServer) -> None:
    page = b"<html>"
    digest = f"sha256:{hashlib.sha256(page).hexdigest()}"
    httpserver.expect_request(f"/v2/nvidia/cuda/manifests/{digest}").respond_with_data(page, content_type="text/html")
    with pytest.raises(IntegrityError, match="login page"):
        image_files(base(registry, digest), through(registry))


def test_an_image_that_has_vanished_is_a_source_error(registry: FakeRegistry) -> None:
    gone = Mirrors((("docker.io", registry.host), ("docker.io", "127.0.0.1:9")))
    registry.server.clear()
    registry.server.expect_request("/").respond_with_data("")
    registry.server.expect_request(f"/v2/nvidia/cuda/manifests/{registry.index}").respond_with_data("", 404)
    with pytest.raises(SourceError) as caught:
        image_files(base(registry), Mirrors(gone.replacements))
    assert "does not serve" in (caught.value.detail or "")


@pytest.fixture
def upstream(host: Path) -> GitArtifact:
    """A repository with one commit, reached through a mirror."""
    folder = host / "mirror" / "NVIDIA" / "apex"
    folder.mkdir(parents=True)

    def git(*arguments: str) -> str:
        run = subprocess.run(
            ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
        return run.stdout.strip()

    git("init", "--quiet")
    (folder / "setup.py").write_text("print('apex')\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    git("config", "uploadpack.allowAnySHA1InWant", "true")
    return GitArtifact(
        name="apex", repository="https://github.com/NVIDIA/apex", tag="25.05", commit=git("rev-parse", "HEAD")
    )


def test_a_source_tree_comes_by_commit_through_a_mirror(host: Path, upstream: GitArtifact) -> None:
    settings(host, **{"https://github.com": [(host / "mirror").as_uri()]})
    (repository,) = fetched(git=(upstream,)).git
    assert repository == repository_of(upstream)
    folder = checkout(upstream, host / "tree")
    assert (folder / "setup.py").read_text() == "print('apex')\n"
    assert not (folder / ".git").exists()
    (host / "mirror").rename(host / "away")
    assert fetched(git=(upstream,)).git == (repository,)


def test_a_commit_that_is_not_there_names_each_address(host: Path, upstream: GitArtifact) -> None:
    other = upstream.model_copy(update={"commit": "0" * 39 + "1"})
    mirrors = Mirrors((("https://github.com", (host / "mirror").as_uri()),))
    only = upstream.model_copy(update={"commit": other.commit, "repository": (host / "mirror/NVIDIA/apex").as_uri()})
    with pytest.raises(SourceError) as caught:
        fetch_commit(only, mirrors, Silent())
    assert "mirror/NVIDIA/apex" in (caught.value.detail or "")
    assert not repository_of(only).exists()


def test_a_damaged_copy_is_noticed(host: Path, upstream: GitArtifact) -> None:
    repository = fetch_commit(upstream, Mirrors((("https://github.com", (host / "mirror").as_uri()),)), Silent())
    pack = next(repository.glob("objects/pack/*.pack"), None)
    victim = pack or next(p for p in repository.glob("objects/??/*"))
    victim.chmod(0o644)
    victim.write_bytes(victim.read_bytes()[:-20] + b"x" * 20)
    with pytest.raises(IntegrityError, match="damaged"):
        checkout(upstream, host / "tree")
