"""The engine without a daemon: buildah, with runc underneath."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from envbuilder.errors import BuildError, HostError
from envbuilder.image import scratch
from envbuilder.image.alone import alone
from envbuilder.image.archives import is_packed, unpacked_file
from envbuilder.image.containers_store import StoredContents
from envbuilder.image.engine import BuildRequest, ImageInfo, Layer, RunRequest
from envbuilder.image.failures import build_error
from envbuilder.image.layouts import manifest_of
from envbuilder.image.load_faults import KILLED, killed, load_error, other_image
from envbuilder.image.names import REBUILT
from envbuilder.image.ownership import inside, writer
from envbuilder.image.process import Process, output
from envbuilder.image.steps import step_title
from envbuilder.report.progress import Progress

_STEP = re.compile(r"^(?:\[\d+/\d+\] )?STEP (\d+)/(\d+): (.*)$")
_GPU_RUNTIME = "nvidia-container-runtime"
INSTALL = "apt-get install --no-install-recommends buildah runc"


class Buildah:
    """Builds with ``buildah build``, runs with ``buildah run``; images lie in the host's containers storage."""

    name = "buildah"

    def __init__(self) -> None:
        for program in ("buildah", "runc"):
            if not shutil.which(program):
                raise HostError(f"{program} is not on this host", cure=f"Install it, as root: {INSTALL}")
        self._store: dict[str, Any] = {}

    def version(self) -> str:
        """``buildah 1.28.2, runc 1.1.5+ds1``."""
        versions = (output([program, "--version"]).stdout.split() for program in ("buildah", "runc"))
        return ", ".join(f"{words[0]} {words[2]}" for words in versions)

    def storage(self) -> Path:
        """Where buildah keeps images."""
        return Path(self._info()["GraphRoot"])

    def driver(self) -> str:
        """The kind of its store: overlay or vfs."""
        return str(self._info()["GraphDriverName"])

    def _info(self) -> dict[str, Any]:
        if not self._store:
            found = output(["buildah", "info"])
            if found.returncode != 0:
                raise HostError("buildah does not work here", detail=found.stderr, cure="Run as root, or use Docker.")
            self._store = json.loads(found.stdout)["store"]
        return self._store

    def build(self, request: BuildRequest, progress: Progress) -> ImageInfo:
        """Build with every file's time set to the request's, layer by layer out of the store where it can.

        buildah knows a step's layer again by the step alone, not by the time that it was built with. When a layer of
        somebody else's build was taken (made by hand without ``--timestamp``), all are built anew.
        """
        self.sweep()
        # Builds in one storage go one after the other: the second finds the layers that it shares with the first.
        with (
            alone(self.storage() / "envbuilder-build.lock", "another build", progress),
            scratch.scratch() as folder,
        ):
            identity = self._build(request, folder, progress)
            if request.cache and not self._is_ours(identity, request):
                progress.stage("the store holds layers of another build of these steps: build every layer anew")
                self.remove(request.tag)
                identity = self._build(replace(request, cache=False), folder, progress)
        image = self.image(identity)
        if image is None:
            raise BuildError(f"buildah built {identity} and does not find it again", cure="Run the command again.")
        return replace(image, reference=request.tag)

    def _build(self, request: BuildRequest, folder: Path, progress: Progress) -> str:
        process = Process(self._build_command(request, folder), env={"TMPDIR": str(folder)}, merge_errors=True)
        step = ""
        try:
            tail: list[str] = []
            for line in process:
                progress.log(line)
                if match := _STEP.match(line):
                    step, tail = match[3], []
                    if title := step_title(step):
                        progress.stage(title)
                elif line:
                    tail = [*tail[-40:], line]
                    progress.item(line.strip())
            code = process.wait()
        finally:
            process.stop()
            self._remove_containers(folder)
        if code != 0:
            raise build_error(step_title(step) or step, "\n".join(tail))
        return (folder / "id").read_text().strip()

    def _is_ours(self, identity: str, request: BuildRequest) -> bool:
        """Whether every step of an image's history, beside those of its bases, is of the request's time."""
        bases = [step for path in request.images.values() for step in _history(_base_name(path))]
        epoch = datetime.fromtimestamp(request.source_date_epoch, tz=timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        steps = [step for step in _history(identity) if step not in bases]
        return all(step.get("created") == epoch for step in steps)

    def _build_command(self, request: BuildRequest, folder: Path) -> list[str]:
        # A secret nobody reads: buildah notes its path in each container it makes, so they can be told from others'.
        marker = folder / "marker"
        marker.touch()
        # buildah mounts a file in /run for each step. In a folder of the host it leaves the image's own untouched:
        # whether what was touched and is as before comes into a layer is up to the storage.
        run = folder / "run"
        run.mkdir(exist_ok=True)
        run.chmod(0o755)
        secrets = {**request.secrets, "envbuilder-scratch": marker}
        return [
            *("buildah", "build", "--layers", "--force-rm", "--identity-label=false", "--isolation", "oci"),
            *("--runtime", "runc", "--network", "host" if request.network else "none", "--volume", f"{run}:/run"),
            # The host's proxy settings are the host's business: what a build fetches, it fetches by the lock.
            *([] if request.network else ["--http-proxy=false"]),
            *("--timestamp", str(request.source_date_epoch), "--target", request.target, "--tag", request.tag),
            *("--iidfile", str(folder / "id"), "--file", str(request.dockerfile)),
            *([] if request.cache else ["--no-cache"]),
            *_pairs("--label", dict(sorted(request.labels.items()))),
            *_pairs("--build-context", {k: str(v) for k, v in request.contexts.items()}),
            *_pairs("--build-context", {reference: _stored(path) for reference, path in request.images.items()}),
            *(part for key, path in secrets.items() for part in ("--secret", f"id={key},src={path}")),
            str(request.context),
        ]

    def image(self, reference: str) -> ImageInfo | None:
        """What ``buildah inspect`` says of the image."""
        found = output(["buildah", "inspect", "--type", "image", reference])
        if found.returncode != 0:
            return None
        data = json.loads(found.stdout)
        layers = json.loads(data["Manifest"])["layers"]
        # An image from elsewhere need not have one, nor one that fits its layers.
        history = data["OCIv1"].get("history") or []
        made_by = [str(step.get("created_by", "")) for step in history if not step.get("empty_layer")]
        if len(made_by) != len(layers):
            made_by = [""] * len(layers)
        return ImageInfo(
            reference=reference,
            id=f"sha256:{data['FromImageID']}",
            digest=data["FromImageDigest"],
            layers=tuple(Layer(layer["digest"], layer["size"], by) for layer, by in zip(layers, made_by, strict=True)),
            labels=data["OCIv1"]["config"].get("Labels") or {},
        )

    def run(self, request: RunRequest) -> BuildahRun:
        """Run in a container of its own, removed afterwards."""
        self.sweep()
        if request.gpu is not None and not shutil.which(_GPU_RUNTIME):
            raise HostError(
                f"{_GPU_RUNTIME} is not on this host, so a container cannot see the GPU",
                cure="Install NVIDIA's container toolkit (package nvidia-container-toolkit), then run this again.",
            )
        return BuildahRun(request)

    def contents(self, image: ImageInfo) -> StoredContents:
        """The image's bytes, read where the store keeps them."""
        identity = image.id.removeprefix("sha256:")
        found = output(["buildah", "inspect", "--type", "image", identity])
        if found.returncode != 0:
            raise HostError(f"the image {image.reference} is gone", detail=found.stderr, cure="Build it again.")
        return StoredContents(self.storage(), identity, json.loads(found.stdout)["Config"].encode())

    def identity(self, image: ImageInfo, progress: Progress) -> str:
        """See Engine. Layers that this storage wrote in its own way are read the first time."""
        contents = self.contents(image)
        if unknown := contents.unknown():
            progress.stage(f"hash {unknown / 1e9:.2f} GB of layers as they leave this storage")
        return f"sha256:{hashlib.sha256(contents.config()).hexdigest()}"

    def remove(self, reference: str) -> None:
        """See Engine."""
        output(["buildah", "rmi", reference])

    def load(self, source: Path, ids: Collection[str], name: str, progress: Progress) -> ImageInfo:
        """Pull it out of the folder or file; the id is that of the configuration."""
        self.sweep()
        with scratch.scratch() as folder:
            # buildah makes a name out of the path, and wants it to be one: no capitals, no spaces, no colons.
            inside = folder / "image"
            if source.is_file():
                _plain(source, inside)
            else:
                inside.symlink_to(source)
            where = f"{'docker-archive' if source.is_file() else 'oci'}:{folder.name}/{inside.name}"
            process = Process(["buildah", "pull", where], env={"TMPDIR": str(folder)}, cwd=folder.parent)
            try:
                for line in process:
                    progress.log(line)
                code = process.wait()
            finally:
                process.stop()
        if code != 0:
            raise killed(self.name) if code in KILLED else load_error(self.name, process.errors(), self.storage())
        image = next((found for found in map(self.image, ids) if found), None)
        if image is not None:
            output(["buildah", "tag", image.id.removeprefix("sha256:"), name])
        for row in json.loads(output(["buildah", "images", "--all", "--json"]).stdout or "null") or []:
            for given in row.get("names") or ():
                if folder.name in given or (image is None and given == name):
                    output(["buildah", "rmi", given])
        if image is None:
            raise other_image(self.name, ids)
        return replace(image, reference=name)

    def sweep(self) -> None:
        """Remove containers, mounts and folders of builds and runs whose process was killed."""
        for folder in scratch.abandoned():
            listing = output(["runc", "list", "--format", "json"]).stdout
            for container in json.loads(listing or "null") or []:
                if container["bundle"].startswith(str(folder)):
                    output(["runc", "delete", "--force", container["id"]])
            self._remove_containers(folder)
            self.remove(f"{REBUILT}:{folder.name}")
            scratch.discard(folder)

    def _remove_containers(self, folder: Path) -> None:
        for container in json.loads(output(["buildah", "containers", "--all", "--json"]).stdout or "null") or []:
            if container["containername"] == folder.name or str(folder) in self._note(container["id"]):
                output(["buildah", "rm", container["id"]])

    def _note(self, container: str) -> str:
        """What buildah wrote down of a container it made; empty when it is gone or another program's."""
        for note in self.storage().glob(f"*-containers/{container}/userdata/buildah.json"):
            with contextlib.suppress(OSError):
                return note.read_text(errors="replace")
        return ""


def _history(image: str) -> list[dict[str, Any]]:
    """The steps of an image; none when it is not there."""
    found = output(["buildah", "inspect", "--type", "image", image])
    steps: list[dict[str, Any]] = json.loads(found.stdout)["OCIv1"]["history"] if found.returncode == 0 else []
    return steps


def _base_name(layout: Path) -> str:
    return f"localhost/envbuilder/base:{manifest_of(layout).removeprefix('sha256:')[:16]}"


def _stored(layout: Path) -> str:
    """Take an OCI layout into the store, by a name that says which it is; that name as a build context."""
    name = _base_name(layout)
    if output(["buildah", "inspect", "--type", "image", name]).returncode != 0:
        with scratch.scratch() as folder:
            # As in load: the path must be one that makes a name, and a cache below ~/.cache does not.
            (folder / "image").symlink_to(layout.absolute())
            pulled = output(["buildah", "pull", "--quiet", f"oci:{folder.name}/image"], cwd=folder.parent)
        tagged = output(["buildah", "tag", pulled.stdout.strip(), name]) if pulled.returncode == 0 else pulled
        if tagged.returncode != 0:
            raise BuildError("buildah does not take the base image", detail=pulled.stderr or tagged.stderr)
        # The name that pull gave it is that of a folder which is gone after the build.
        for row in json.loads(output(["buildah", "images", "--json", name]).stdout or "null") or []:
            for stray in (other for other in row["names"] or () if folder.name in other):
                output(["buildah", "rmi", stray])
    return f"container-image://{name}"


def _plain(archive: Path, plain: Path) -> None:
    """Have the archive at ``plain`` as buildah takes it: 1.28 takes none that is packed with gzip."""
    with archive.open("rb") as stream:
        if not is_packed(stream.peek(4)):
            plain.symlink_to(archive.absolute())
            return
    with plain.open("wb") as out:
        for chunk in unpacked_file(archive, lambda count: None):
            out.write(chunk)


class BuildahRun:
    """A command running through ``buildah run``."""

    def __init__(self, request: RunRequest) -> None:
        self._cleanup = ExitStack()
        folder = self._cleanup.enter_context(scratch.scratch())
        try:
            shm = f"{request.shm_mib}m"
            made = output(["buildah", "from", "--pull-never", "--shm-size", shm, "--name", folder.name, request.image])
            self._cleanup.callback(output, ["buildah", "rm", folder.name])
            if made.returncode != 0:
                raise HostError(
                    f"no container can be made from {request.image}",
                    cure="Is the image there? `buildah images` lists them; `envbuilder build` makes one.",
                    detail=made.stderr,
                )
            self._process = Process(_run_command(request, folder.name), env={"TMPDIR": str(folder)})
            self._cleanup.callback(self._process.stop)
        except BaseException:
            self._cleanup.close()
            raise

    def __iter__(self) -> Iterator[str]:
        return iter(self._process)

    def wait(self) -> int:
        """The command's exit code."""
        try:
            return self._process.wait()
        finally:
            self._cleanup.close()

    def errors(self) -> str:
        """The tail of standard error, without buildah's own word on the exit code."""
        lines = self._process.errors().splitlines()
        return "\n".join(line for line in lines if not line.startswith("Error: while running runtime: exit status"))

    def stop(self) -> None:
        """End the command and remove the container."""
        self._cleanup.close()


def _run_command(request: RunRequest, container: str) -> list[str]:
    gpu = {"NVIDIA_VISIBLE_DEVICES": request.gpu, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    env = {**request.env, **(gpu if request.gpu is not None else {})}
    owner = writer(request.writable)
    user = "" if owner is None else ":".join(map(str, inside(owner)))
    return [
        *("buildah", "run", "--isolation", "oci", "--runtime", "runc" if request.gpu is None else _GPU_RUNTIME),
        *("--network", "host" if request.network else "none"),
        *(part for key, value in env.items() for part in ("--env", f"{key}={value}")),
        *(("--user", user) if user else ()),
        *(part for host, path in request.mounts.items() for part in ("--volume", f"{host}:{path}:ro")),
        *(part for host, path in request.writable.items() for part in ("--volume", f"{host}:{path}")),
        *(container, "--", *request.command),
    ]


def _pairs(option: str, values: dict[str, str]) -> list[str]:
    return [part for key, value in values.items() for part in (option, f"{key}={value}")]
