"""The Docker engine: BuildKit through ``docker buildx``, everything else through Docker's SDK."""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import docker
import docker.errors
import docker.models.containers
import docker.types
import requests
import urllib3

from envbuilder.errors import BuildError, HostError
from envbuilder.image import scratch
from envbuilder.image.archives import diff_ids_in, packed_members, size_of, tar_of, unpacked_file, unpacked_members
from envbuilder.image.buildkit_progress import BuildKitProgress
from envbuilder.image.docker_stream import SavedContents
from envbuilder.image.engine import BuildRequest, ImageInfo, Layer, RunRequest
from envbuilder.image.failures import build_error
from envbuilder.image.layouts import manifest_of
from envbuilder.image.load_faults import gone, load_error, other_image
from envbuilder.image.names import REBUILT
from envbuilder.image.ownership import writer
from envbuilder.image.process import output
from envbuilder.report.progress import Progress

# rewrite-timestamp, without which no two builds are alike, came with BuildKit 0.13: Docker 26, buildx 0.13.
FIRST_DAEMON = 26
FIRST_BUILDX = (0, 13)
_OWNER = "io.envbuilder.scratch"
_ANSWER_SECONDS = 5
_SAVE_CHUNK = 1024 * 1024
_LONG_SECONDS = 24 * 3600
_TOOLKIT = (
    "Install NVIDIA's container toolkit (package nvidia-container-toolkit), run "
    "`nvidia-ctk runtime configure --runtime=docker`, then restart Docker."
)
_GPU_FAULTS = (
    "could not select device driver",
    "unknown or invalid runtime name: nvidia",
    "unresolvable CDI devices",
    "nvidia-container-cli",
)


class Docker:
    """A Docker daemon that answers; images lie in its own store."""

    name = "docker"

    def __init__(self, address: str | None = None) -> None:
        """``address`` is where the daemon answers (``unix://...``); without it, what the environment says."""
        try:
            _client(address, _ANSWER_SECONDS).ping()
            # Loading an image and waiting for a container take as long as they take.
            self._client = _client(address, _LONG_SECONDS)
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise HostError(
                "no Docker daemon answers on this host",
                cure="Start it (systemctl start docker), set DOCKER_HOST, or build without it: --engine buildah.",
                detail=str(error),
            ) from None

    def version(self) -> str:
        """``docker 26.1.5, buildx 0.13.1``; ``podman 4.3.1`` where it is podman that answers on the socket."""
        if self._is_podman():
            return f"podman {self._daemon_version()}"
        buildx = _buildx_version()
        return f"docker {self._daemon_version()}" + (f", buildx {'.'.join(map(str, buildx))}" if buildx else "")

    def _lowest_there(self, layers: list[str]) -> int:
        """How many of the layers, from the bottom up, need not be sent.

        Docker's own store (overlay2) looks for a layer before it reads it from an archive; the others want them all.
        Tried with 20.10.24 and 26.1.5.
        """
        if self._client.info()["Driver"] != "overlay2":
            return 0
        known: list[list[str]] = []
        # An image may be removed while they are listed.
        with contextlib.suppress(docker.errors.ImageNotFound):
            known = [image.attrs["RootFS"].get("Layers") or [] for image in self._client.images.list()]
        same = [list(takewhile(lambda pair: pair[0] == pair[1], zip(layers, other, strict=False))) for other in known]
        return max(map(len, same), default=0)

    def _is_podman(self) -> bool:
        parts = self._client.version().get("Components") or []
        return any(part.get("Name") == "Podman Engine" for part in parts)

    def _daemon_version(self) -> str:
        version: str = self._client.version()["Version"]
        return version

    def storage(self) -> Path | None:
        """The daemon's root folder, where that is on this host."""
        root = Path(self._client.info()["DockerRootDir"])
        return root if root.is_dir() else None

    def driver(self) -> str:
        """The kind of the daemon's store: overlay2, overlayfs, vfs."""
        return str(self._client.info()["Driver"])

    def check_can_build(self) -> None:
        """Raise HostError when the daemon or its client cannot make the same image twice."""
        daemon = self._daemon_version()
        if int(daemon.split(".")[0]) < FIRST_DAEMON:
            raise HostError(
                f"the Docker daemon is {daemon}; two builds of it are never alike (BuildKit 0.13 is needed)",
                cure=f"Update Docker to {FIRST_DAEMON} or newer, or build without it: --engine buildah.",
            )
        buildx = _buildx_version()
        if buildx is None or buildx < FIRST_BUILDX:
            found = f"buildx {'.'.join(map(str, buildx))}" if buildx else "no buildx"
            raise HostError(
                f"Docker has {found} here; {'.'.join(map(str, FIRST_BUILDX))} or newer is needed to build",
                cure="Install docker-buildx-plugin (Docker's own) or docker-buildx (Debian's), or: --engine buildah",
            )

    def build(self, request: BuildRequest, progress: Progress) -> ImageInfo:
        """Build with BuildKit and load the result into the daemon's store as it comes, without a file in between."""
        self.check_can_build()
        self.sweep()
        with scratch.scratch() as folder:
            metadata = folder / "metadata.json"
            process = subprocess.Popen(
                _build_command(request, metadata),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            listener = BuildKitProgress(process.stderr, progress)
            try:
                assert process.stdout
                # The stream is empty when the build fails: the daemon then has nothing to load.
                with contextlib.suppress(docker.errors.APIError, docker.errors.ImageLoadError):
                    self._client.images.load(process.stdout)
                code = process.wait()
                listener.join()
            except BaseException:
                process.terminate()
                process.wait()
                raise
            if code != 0:
                raise build_error(listener.step, listener.tail())
            digests = json.loads(metadata.read_text())
        image = self.image(request.tag)
        if image is None:
            raise BuildError(f"Docker built {request.tag} and does not find it again", detail=listener.tail())
        return replace(image, digest=digests.get("containerimage.digest", image.digest))

    def image(self, reference: str) -> ImageInfo | None:
        """What the daemon says of the image. Without a registry's digest, the id stands for it."""
        try:
            found = self._client.images.get(reference)
        except (docker.errors.ImageNotFound, docker.errors.NullResource):
            return None
        attributes: dict[str, Any] = found.attrs
        digests = [entry.partition("@")[2] for entry in attributes.get("RepoDigests") or []]
        made: list[tuple[int, str]] = []
        # The containerd store unpacks an image when it is first run; until then it may not know its history.
        with contextlib.suppress(docker.errors.APIError):
            made = [(step["Size"], step["CreatedBy"]) for step in reversed(found.history() or []) if step["Size"]]
        ids = attributes["RootFS"]["Layers"]
        if len(made) != len(ids):
            made = [(0, "")] * len(ids)
        return ImageInfo(
            reference=reference,
            id=attributes["Id"],
            digest=digests[0] if digests else attributes["Id"],
            layers=tuple(Layer(digest, size, by) for digest, (size, by) in zip(ids, made, strict=True)),
            labels=found.labels,
        )

    def run(self, request: RunRequest) -> DockerRun:
        """Run in a container of its own, removed afterwards."""
        self.sweep()
        return DockerRun(self._client, request)

    def contents(self, image: ImageInfo) -> SavedContents:
        """The image's bytes as the daemon saves them."""
        chunks = self._client.images.get(image.id).save(chunk_size=_SAVE_CHUNK)
        return SavedContents(iter(chunks), {layer.digest: layer.size for layer in image.layers})

    def identity(self, image: ImageInfo, progress: Progress) -> str:
        """The daemon saves what it stores."""
        return image.id

    def remove(self, reference: str) -> None:
        """See Engine."""
        with contextlib.suppress(docker.errors.ImageNotFound):
            self._client.images.remove(reference)

    def load(self, source: Path, ids: Collection[str], name: str, progress: Progress) -> ImageInfo:
        """Stream it to the daemon; the id is that of the configuration, or of the manifest in containerd's store."""
        try:
            return self._load(source, ids, name, progress)
        except docker.errors.APIError as error:
            raise load_error(self.name, str(error), self.storage()) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, http.client.HTTPException) as error:
            raise gone(self.name, error) from None

    def _load(self, source: Path, ids: Collection[str], name: str, progress: Progress) -> ImageInfo:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress.advance(done, total)

        if source.is_file():
            total, stream = source.stat().st_size, unpacked_file(source, advance)
        else:
            manifest = manifest_of(source)
            # Docker 20.10 takes no zstd.
            takes_zstd = self._is_podman() or int(self._daemon_version().split(".")[0]) >= FIRST_DAEMON
            members_of = packed_members if takes_zstd else unpacked_members
            members = members_of(source, manifest, without=self._lowest_there(diff_ids_in(source, manifest)))
            total, stream = size_of(members), tar_of(members, advance)
        for line in self._client.api.load_image(stream):  # type: ignore[no-untyped-call]  # its stub lacks a type
            progress.log(str(line))
            if "error" in line:
                raise load_error(self.name, str(line["error"]), self.storage())
        image = next((found for found in map(self.image, ids) if found), None)
        if image is None:
            raise other_image(self.name, ids)
        repository, _, tag = name.rpartition(":")
        self._client.api.tag(image.id, repository, tag)
        return replace(image, reference=name)

    def sweep(self) -> None:
        """Remove the containers of runs whose process was killed."""
        for folder in scratch.abandoned():
            for container in self._client.containers.list(all=True, filters={"label": f"{_OWNER}={folder.name}"}):
                with contextlib.suppress(docker.errors.APIError):
                    container.remove(force=True)
            self.remove(f"{REBUILT}:{folder.name}")
            scratch.discard(folder)


class DockerRun:
    """A command running in a container."""

    def __init__(self, client: docker.DockerClient, request: RunRequest) -> None:
        self._cleanup = ExitStack()
        folder = self._cleanup.enter_context(scratch.scratch())
        self._tail = ""
        try:
            self._container = _create(client, request, folder.name)
            self._cleanup.callback(self._remove)
            self._container.start()
        except docker.errors.ImageNotFound:
            self._cleanup.close()
            raise HostError(
                f"there is no image {request.image}", cure="`docker images` lists them; `envbuilder build` makes one."
            ) from None
        except docker.errors.APIError as error:
            self._cleanup.close()
            text = str(error.explanation or error)
            if any(fault in text for fault in _GPU_FAULTS):
                raise HostError("Docker cannot give a container the GPU", detail=text, cure=_TOOLKIT) from None
            raise HostError("the container did not start", detail=text, cure="See what Docker says above.") from None
        except BaseException:
            self._cleanup.close()
            raise

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for chunk in self._container.logs(stream=True, follow=True, stdout=True, stderr=False):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode(errors="replace").rstrip("\r")
        if rest:
            yield rest.decode(errors="replace")

    def wait(self) -> int:
        """The command's exit code."""
        try:
            code: int = self._container.wait()["StatusCode"]
            self._tail = self._container.logs(stdout=False, stderr=True, tail=200).decode(errors="replace")
            return code
        finally:
            self._cleanup.close()

    def errors(self) -> str:
        """The tail of standard error."""
        return self._tail.rstrip("\n")

    def stop(self) -> None:
        """End the command and remove the container."""
        self._cleanup.close()

    def _remove(self) -> None:
        with contextlib.suppress(docker.errors.APIError):
            self._container.remove(force=True)


def _create(client: docker.DockerClient, request: RunRequest, name: str) -> docker.models.containers.Container:
    devices = None
    if request.gpu is not None:
        wanted = {"count": -1} if request.gpu == "all" else {"device_ids": [request.gpu]}
        devices = [docker.types.DeviceRequest(driver="nvidia", capabilities=[["gpu"]], **wanted)]
    owner = writer(request.writable)
    return client.containers.create(
        request.image,
        list(request.command),
        environment=dict(request.env),
        volumes={
            str(host): {"bind": path, "mode": mode}
            for mounts, mode in ((request.mounts, "ro"), (request.writable, "rw"))
            for host, path in mounts.items()
        },
        user=None if owner is None else f"{owner[0]}:{owner[1]}",
        network_mode=None if request.network else "none",
        shm_size=request.shm_mib * 2**20,
        device_requests=devices,
        security_opt=["no-new-privileges"],
        labels={_OWNER: name},
    )


def _build_command(request: BuildRequest, metadata: Path) -> list[str]:
    return [
        *("docker", "buildx", "build", "--progress=rawjson", "--provenance=false", "--sbom=false"),
        *("--metadata-file", str(metadata), "--build-arg", f"SOURCE_DATE_EPOCH={request.source_date_epoch}"),
        # To standard output, from where it is loaded: the daemon's own exporter cannot rewrite times.
        *("--output", f"type=docker,dest=-,name={request.tag},rewrite-timestamp=true,compression=uncompressed"),
        *("--network", "default" if request.network else "none"),
        *("--file", str(request.dockerfile), "--target", request.target),
        *([] if request.cache else ["--no-cache"]),
        *(part for k, v in sorted(request.labels.items()) for part in ("--label", f"{k}={v}")),
        *(part for k, path in request.contexts.items() for part in ("--build-context", f"{k}={path}")),
        *(
            part
            for reference, path in request.images.items()
            for part in ("--build-context", f"{reference}=oci-layout://{path}@{manifest_of(path)}")
        ),
        *(part for k, path in request.secrets.items() for part in ("--secret", f"id={k},src={path}")),
        str(request.context),
    ]


def _client(address: str | None, timeout: int) -> docker.DockerClient:
    return docker.DockerClient(address, timeout=timeout) if address else docker.from_env(timeout=timeout)


def _buildx_version() -> tuple[int, ...] | None:
    if not shutil.which("docker"):
        return None
    found = output(["docker", "buildx", "version"])
    words = found.stdout.split()
    if found.returncode != 0 or len(words) < 2:
        return None
    number = words[1].lstrip("v").split("+")[0].split("-")[0]
    return tuple(int(part) for part in number.split(".") if part.isdigit())
