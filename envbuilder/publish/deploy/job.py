"""What a job file is rendered from, and the checks that need no scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from envbuilder.errors import InputError, Place

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# The grammar of references (Distribution's reference package), without a tag: a digest names the image.
_NAME = re.compile(
    r"(?:(?P<registry>[A-Za-z0-9.-]+(?::[0-9]+)?|\[[0-9A-Fa-f:]+\](?::[0-9]+)?)/)?"
    r"(?P<path>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?"
)
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_LABEL_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_INTERFACE = re.compile(r"[!-.0-9;-~]{1,15}")
_CLAIM = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


@dataclass(frozen=True)
class ImageName:
    """An image by its digest: ``registry`` is empty where the name leaves it out."""

    registry: str
    path: str
    digest: str

    @property
    def reference(self) -> str:
        """``registry.example/team/p40@sha256:...``; a tag that was given is gone, since the digest decides."""
        return f"{self.registry}/{self.path}@{self.digest}" if self.registry else f"{self.path}@{self.digest}"


def image_name(text: str) -> ImageName:
    """The parts of ``NAME@sha256:DIGEST``. Raises InputError for a name without a digest: a tag can be moved."""
    name, _, digest = text.partition("@")
    found = _NAME.fullmatch(name)
    if not found or not _DIGEST.fullmatch(digest):
        raise InputError(
            f"{text!r} names no image by its digest",
            place=Place(field="--image"),
            cure="Give REGISTRY/NAME@sha256:DIGEST, as `envbuilder push` prints it.",
        )
    registry, path = found["registry"] or "", found["path"]
    if registry and not ("." in registry or ":" in registry or registry == "localhost"):
        registry, path = "", f"{registry}/{path}"
    return ImageName(registry, path, digest)


@dataclass(frozen=True)
class Folder:
    """Where a folder comes from: an absolute path of the host, or a claim (Kubernetes) with a folder in it."""

    path: str = ""
    claim: str = ""
    inside: str = ""


def folder(text: str, option: str) -> Folder:
    """``/a/path`` or ``pvc:CLAIM[/FOLDER]``. Raises InputError for anything else."""
    place = Place(field=option)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError("the path is not UTF-8, which job files are", place=place, cure="Rename the folder.") from None
    if text.startswith("pvc:"):
        claim, _, inside = text.removeprefix("pvc:").partition("/")
        if not _CLAIM.fullmatch(claim) or ".." in PurePosixPath(inside).parts or inside.startswith("/"):
            raise InputError(
                f"{text!r} names no claim", place=place, cure="Give pvc:CLAIM or pvc:CLAIM/FOLDER, CLAIM in lower case."
            )
        return Folder(claim=claim, inside=inside)
    if not text.startswith("/") or "\0" in text or ".." in PurePosixPath(text).parts:
        raise InputError(
            f"{text!r} is no absolute path",
            place=place,
            cure="Give the path as the hosts see it, from / and without `..`.",
        )
    if not PurePosixPath(text).parts[1:]:
        raise InputError(
            f"{text!r} is all that a host has, and a job is given no more than it needs",
            place=place,
            cure="Give the one folder it is about.",
        )
    return Folder(path=text)


def node_labels(given: Sequence[str]) -> dict[str, str]:
    """Labels out of KEY=VALUE texts. Raises InputError for one that is none."""
    labels = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InputError(
                f"{text!r} is no label of a node",
                place=Place(field="--node-label"),
                cure="Give KEY=VALUE, such as nvidia.com/gpu.product=Tesla-P40 (kubectl get nodes --show-labels).",
            )
        labels[key] = value
    return labels


def interface(text: str) -> str:
    """The name of a network interface, or nothing. Raises InputError for what Linux would not take."""
    if text and not _INTERFACE.fullmatch(text):
        raise InputError(
            f"{text!r} is no network interface",
            place=Place(field="--interface"),
            cure="`ip link` on a host shows the names, such as eth0.",
        )
    return text


@dataclass(frozen=True)
class Job:
    """A run on ``nodes`` hosts with ``gpus`` cards each.

    ``shm_gib`` is the size of /dev/shm, which Ray's objects lie in. ``hours`` ends a run that hangs. ``interface`` is
    the network interface between the hosts, empty for what NCCL and gloo find. ``overrides`` are hydra's, the whole
    command line of the trainer. ``node_labels`` choose hosts in Kubernetes.
    """

    stack: str
    image: ImageName
    model: Folder
    data: Folder
    results: Folder
    overrides: tuple[str, ...]
    nodes: int = 1
    gpus: int = 1
    shm_gib: int = 8
    hours: int = 24
    interface: str = ""
    node_labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The job's name: a DNS label of at most 50 characters, since hosts are named after it."""
        plain = re.sub(r"[^a-z0-9]+", "-", f"envbuilder-{self.stack}".lower())
        return plain[:50].strip("-")
