"""Provenance: how an image came to be, as a SLSA v1 predicate of an in-toto statement.

What was asked for, what it was made of (every artifact of the lock, by digest) and what made it. It holds nothing
that changes from one build of the same lock to the next but what the builder itself is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envbuilder import __version__
from envbuilder.image.record import record_path
from envbuilder.lock.model import Lock
from envbuilder.publish.sbom.locked import base_image_purl, source_purl
from envbuilder.publish.sbom.purl import purl
from envbuilder.publish.statements import PROVENANCE, statement
from envbuilder.stack.model import Stack

# Who builds and how, as URIs: package URLs of envbuilder, which has no address of its own.
BUILDER = "pkg:pypi/gpu-envbuilder"
BUILD_TYPE = f"{BUILDER}#build"


@dataclass(frozen=True)
class Origin:
    """What an image was built from: its stack and lock, the target, and what its labels and record say.

    ``inputs`` is the digest of Dockerfile, own files and installer that the image bears as a label. ``builder`` maps
    a program to its version; it is empty when no record of the build is at hand.
    """

    stack: Stack
    lock: Lock
    target: str
    slim: bool
    inputs: str
    builder: Mapping[str, str]


def provenance(name: str, digest: str, origin: Origin) -> bytes:
    """The statement on the image ``digest``, known as ``name``."""
    asked = {"stack": origin.stack.name, "target": origin.target, "gpu": origin.stack.gpu, "slim": origin.slim}
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": asked,
        "internalParameters": {
            "inputs": origin.inputs,
            "lock": origin.lock.digest,
            "source_date_epoch": origin.stack.source_date_epoch,
        },
        "resolvedDependencies": list(_materials(origin)),
    }
    details = {"builder": {"id": BUILDER, "version": {"envbuilder": __version__, **origin.builder}}}
    return statement(name, digest, PROVENANCE, {"buildDefinition": definition, "runDetails": details})


def builder_of(stack: str, target: str, slim: bool, identity: str) -> Mapping[str, str]:
    """The engine and the installer by the record of the build of exactly this image; empty without one."""
    try:
        record = json.loads(record_path(stack, target, slim=slim).read_bytes())
        if record["id"] != identity:
            return {}
        builder = record["builder"]
        engine, _, version = str(builder["engine"]).partition(" ")
        return {engine: version, "uv": str(builder["uv"])}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _materials(origin: Origin) -> Iterator[dict[str, Any]]:
    """Every artifact that the build takes, as a resource descriptor."""
    lock = origin.lock
    for image in lock.images:
        if image.target in (origin.target, "installer", "devel"):
            yield _resource(base_image_purl(image), sha256=image.digest.removeprefix("sha256:"))
    suite = lock.debian.suite if lock.debian else ""
    for deb in lock.debs:
        if deb.target == "runtime" or origin.target == "devel":
            url = purl("deb", deb.name, deb.version, namespace="debian", arch=deb.architecture, distro=suite)
            yield _resource(url, deb.filename, sha256=deb.sha256)
    for package in lock.conda:
        digest = {"sha256": package.sha256} if package.sha256 else {"md5": package.md5}
        url = purl("conda", package.name, package.version, build=package.build)
        yield _resource(url, package.filename, **digest)
    for wheel in lock.python:
        yield _resource(purl("pypi", wheel.name, wheel.version), wheel.filename, sha256=wheel.sha256)
    for tree in lock.git:
        yield _resource(source_purl(tree), gitCommit=tree.commit)


def _resource(uri: str, name: str = "", **digest: str) -> dict[str, Any]:
    return {"uri": uri, **({"name": name} if name else {}), "digest": digest}
