"""The packages of an image held against its lock: the digest of the very file each one was installed from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from envbuilder.lock.model import BaseImage, CondaArtifact, DebArtifact, GitArtifact, Lock, PythonArtifact
from envbuilder.publish.sbom.model import Component, Kind
from envbuilder.publish.sbom.purl import purl

_Artifact = DebArtifact | PythonArtifact | CondaArtifact


class Locked:
    """The artifacts of a lock by what an image calls them. Without a lock nothing is known of any package."""

    def __init__(self, lock: Lock | None) -> None:
        self._lock = lock
        self._artifacts: dict[tuple[Kind, str, str], _Artifact] = {}
        self._git: Mapping[str, GitArtifact] = {}
        if lock is None:
            return
        from packaging.utils import canonicalize_name

        self._artifacts = {
            **{(Kind.DEBIAN, a.name, a.version): a for a in lock.debs},
            **{(Kind.CONDA, a.name, f"{a.version} {a.build}"): a for a in lock.conda},
            **{(Kind.PYTHON, canonicalize_name(a.name), _version(a.version)): a for a in lock.python},
        }
        self._git = {canonicalize_name(a.name): a for a in lock.git}

    def named(self, component: Component) -> Component:
        """The component with what the lock says of it: digest, file, size, or the commit it was built from."""
        git = self._git.get(component.name) if component.kind is Kind.PYTHON else None
        if git is not None:
            built = {"repository": git.repository, "commit": git.commit, "tag": git.tag}
            return replace(
                component,
                kind=Kind.SOURCE,
                purl=source_purl(git),
                properties={**component.properties, **built},
            )
        artifact = self._find(component)
        if artifact is None:
            return component
        size = {"size": str(artifact.size)} if artifact.size is not None else {}
        return replace(
            component,
            sha256=artifact.sha256 or "",
            properties={**component.properties, "file": artifact.filename, **size},
        )

    def lacks(self, component: Component) -> bool:
        """Whether the lock should name the component and does not."""
        if self._lock is None or component.kind not in (Kind.DEBIAN, Kind.PYTHON, Kind.CONDA):
            return False
        # The packages of a base image are pinned by its digest, what a conda package brings along by the package's.
        if (component.kind is Kind.DEBIAN and self._lock.debian is None) or "within" in component.properties:
            return False
        return self._find(component) is None

    def images(self) -> Iterator[Component]:
        """The base images the image may start from."""
        for image in self._lock.images if self._lock else ():
            if image.target == "installer":
                continue
            repository, _, tag = image.reference.partition(":")
            yield Component(
                Kind.IMAGE,
                repository,
                tag,
                base_image_purl(image),
                sha256=image.digest.removeprefix("sha256:"),
                properties={"target": image.target},
            )

    def _find(self, component: Component) -> _Artifact | None:
        version = component.version
        if component.kind is Kind.CONDA:
            version = f"{version} {component.properties['build']}"
        if component.kind is Kind.PYTHON:
            version = _version(version)
        return self._artifacts.get((component.kind, component.name, version))


def _version(text: str) -> str:
    """A Python version in its one form, so that 1.0 and 1.0.0 of two writers are the same."""
    from packaging.utils import canonicalize_version

    return str(canonicalize_version(text))


def base_image_purl(image: BaseImage) -> str:
    """The package URL of an image out of a registry, by digest."""
    repository, _, tag = image.reference.partition(":")
    url = repository if "." in repository.partition("/")[0] else f"docker.io/{repository}"
    return purl("oci", repository.rpartition("/")[2], image.digest, repository_url=url, tag=tag)


def source_purl(git: GitArtifact) -> str:
    """The package URL of a source tree at its commit."""
    host, _, path = git.repository.partition("://")[2].partition("/")
    namespace, _, name = path.removesuffix(".git").rpartition("/")
    if host == "github.com":
        return purl("github", name.lower(), git.commit, namespace=namespace.lower())
    return purl("generic", name, git.commit, vcs_url=f"git+{git.repository}@{git.commit}")
