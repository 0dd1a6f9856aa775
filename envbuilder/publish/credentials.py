"""Logins of registries out of the client's own stores: what docker login, podman login and buildah login keep.

Read with Docker's SDK, which knows the files and the credential helpers. Nothing is ever written there.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.errors import HostError, InputError, Place
from envbuilder.lock.registry import DOCKER_HUB

# Docker's SDK is slow to import, and not needed while nobody asks who is there.
if TYPE_CHECKING:
    import docker.auth


@dataclass(frozen=True)
class Login:
    """Who to be at a registry. ``identity`` is a refresh token that stands in place of a password.

    ``store`` is the file it was found in, ``command`` what makes a new one.
    """

    username: str
    secret: str = field(repr=False)
    identity: bool
    store: Path
    command: str


def login_for(host: str, repository: str) -> Login | None:
    """The login for ``repository`` at ``host``, or None where none is stored.

    The order is that of the containers tools: REGISTRY_AUTH_FILE, their auth.json, then Docker's config.json. In
    auth.json a login may stand for a part of a registry only; the narrowest wins.
    Raises InputError for a damaged store, HostError for a credential helper that fails.
    """
    for path, program in _stores():
        auth = _load(path)
        found = _narrowest(auth, host, repository) or _resolve(auth, host, path)
        if not found:
            continue
        # Docker's SDK spells them in lower case out of a file and in upper case out of a helper.
        entry = {key.lower(): value for key, value in found.items()}
        command = f"{program} login {host}".removesuffix(f" {DOCKER_HUB}")
        if entry.get("identitytoken"):
            return Login("", str(entry["identitytoken"]), True, path, command)
        if entry.get("username"):
            return Login(str(entry["username"]), str(entry.get("password") or ""), False, path, command)
    return None


def login_command(host: str) -> str:
    """What logs in at ``host`` with the tools of this host."""
    program = next((name for name in ("docker", "podman", "buildah") if shutil.which(name)), "docker")
    return f"{program} login {host}".removesuffix(f" {DOCKER_HUB}")


def _stores() -> Iterator[tuple[Path, str]]:
    """The files there are, in order, and the program whose login writes there."""
    containers = "podman" if shutil.which("podman") else "buildah"
    if chosen := os.environ.get("REGISTRY_AUTH_FILE"):
        if not Path(chosen).is_file():
            raise InputError(
                "REGISTRY_AUTH_FILE names no file", place=Place(chosen), cure="Log in again, or unset the variable."
            )
        yield Path(chosen), containers
        return
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    for folder in (runtime, Path("/run/containers") / str(os.getuid()), config):
        path = folder / ("auth.json" if folder.parent.name == "containers" else "containers/auth.json")
        if path.is_file():
            yield path, containers
    from docker.utils.config import find_config_file

    if found := find_config_file():
        yield Path(str(found)), "docker"


def _load(path: Path) -> docker.auth.AuthConfig:
    import docker.auth
    import docker.errors

    try:
        content = path.read_bytes()
        # Docker's SDK takes a damaged file for one of an older form, and finds nothing in it.
        if path.suffix == ".json" and not isinstance(json.loads(content), dict):
            raise TypeError
        return docker.auth.load_config(config_path=str(path))
    except OSError as error:
        raise HostError(
            f"the store of logins cannot be read: {error.strerror}",
            place=Place(str(path)),
            cure="Run as the user whose logins they are.",
        ) from None
    except (ValueError, AttributeError, TypeError, RecursionError, docker.errors.DockerException):
        raise InputError(
            "the store of logins is damaged",
            place=Place(str(path)),
            cure="Log in again, or put the file right.",
        ) from None


def _narrowest(auth: docker.auth.AuthConfig, host: str, repository: str) -> dict[str, Any] | None:
    parts = repository.split("/")
    for end in range(len(parts), 0, -1):
        if found := auth.auths.get("/".join([host, *parts[:end]])):
            return dict(found)
    return None


def _resolve(auth: docker.auth.AuthConfig, host: str, path: Path) -> dict[str, Any] | None:
    import docker.errors

    try:
        with warnings.catch_warnings():
            # That a helper is missing is told below, once.
            warnings.simplefilter("ignore")
            found = auth.resolve_authconfig(host)
    except docker.errors.DockerException as error:
        raise HostError(
            f"the credential helper for {host} fails",
            place=Place(str(path)),
            cure=f"Run `{login_command(host)}`, or put the helper right (credsStore and credHelpers name it).",
            detail=str(error),
        ) from None
    return dict(found) if found else None
