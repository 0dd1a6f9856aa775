"""What pip and uv are told on this host: the default index, certificates, proxy. Read here, never written anywhere.

pip's settings count where uv has none of its own, so that whoever has set up either needs nothing more. Settings
that would change what is chosen (further indexes, pre-releases, constraints) are left out: a lock depends on the
stack alone.
"""

from __future__ import annotations

import configparser
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import platformdirs
import requests

from envbuilder import toml
from envbuilder.errors import InputError, Place, SourceError

# What may pass from the user's environment to uv: how it reaches an index, and nothing about what it chooses.
_UV_PASSES = (
    "UV_CACHE_DIR",
    "UV_CONCURRENT_DOWNLOADS",
    "UV_HTTP_TIMEOUT",
    "UV_HTTP_RETRIES",
    "UV_INSECURE_HOST",
    "UV_KEYRING_PROVIDER",
    "UV_NATIVE_TLS",
    "UV_SYSTEM_CERTS",
    "UV_CREDENTIALS_DIR",
)
_SYSTEM = Path("/etc")
_PIP_SECTIONS = ("global", "install")
# Debian and its kin; Fedora and its kin.
_SYSTEM_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt")
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@")


@dataclass(frozen=True)
class PythonClient:
    """How this host reaches its Python index. Every field None means: the client's own default."""

    index: str | None
    ca_bundle: str | None
    proxy: str | None
    client_cert: str | None
    insecure_hosts: tuple[str, ...]

    def environment(self) -> dict[str, str]:
        """The environment uv runs with."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_")) or k in _UV_PASSES}
        env.update(UV_NO_CONFIG="1", UV_PYTHON_DOWNLOADS="never", UV_NO_PROGRESS="1", NO_COLOR="1")
        if self.index:
            env["UV_DEFAULT_INDEX"] = self.index
        if self.ca_bundle:
            env["SSL_CERT_FILE"] = self.ca_bundle
        if self.client_cert:
            env["SSL_CLIENT_CERT"] = self.client_cert
        if self.insecure_hosts:
            env["UV_INSECURE_HOST"] = " ".join(self.insecure_hosts)
        if self.proxy:
            env["ALL_PROXY"] = self.proxy
        return env


def python_client() -> PythonClient:
    """Read the settings of uv (environment, configuration files), then of pip."""
    uv, pip = _uv_settings(), _pip_settings()
    env = os.environ
    proxied = any(env.get(name) or env.get(name.lower()) for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY"))
    hosts = env.get("UV_INSECURE_HOST", "").split() or uv.get("allow-insecure-host", []) or _words(pip, "trusted-host")
    return PythonClient(
        index=env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or _uv_index(uv) or pip.get("index-url"),
        ca_bundle=env.get("SSL_CERT_FILE") or pip.get("cert"),
        proxy=None if proxied else pip.get("proxy"),
        client_cert=env.get("SSL_CLIENT_CERT") or pip.get("client-cert"),
        insecure_hosts=tuple(hosts),
    )


def ca_bundle() -> str | None:
    """The certificates this host trusts: what pip or uv is told, else the system's; None where there are none."""
    for path in (python_client().ca_bundle, *_SYSTEM_BUNDLES):
        if path and Path(path).is_file():
            return path
    return None


def redact(text: str) -> str:
    """``text`` without the user names and passwords of the addresses in it."""
    return _CREDENTIALS.sub("", text)


def distrusts(error: Exception) -> bool:
    """Whether ``error`` is of a certificate: a connection that breaks amid TLS is of the same kind, and is none."""
    return isinstance(error, requests.exceptions.SSLError) and "certificate" in str(error).lower()


def untrusted(host: str, error: Exception) -> SourceError:
    """What a refused certificate comes to for people: with a wrong clock here, good ones look bad."""
    text = str(error)
    if "not yet valid" in text or "has expired" in text:
        when = "is not valid yet" if "not yet valid" in text else "has expired"
        now = f"{datetime.now(tz=timezone.utc):%Y-%m-%d %H:%M} UTC"
        return SourceError(
            f"the certificate of {host} {when}, by this host's clock: {now}",
            cure="If that is not the time, set the clock (timedatectl set-ntp true). If it is, tell whoever runs it.",
            detail=redact(text),
        )
    return SourceError(
        f"the certificate of {host} is not trusted here",
        cure="Behind a proxy with its own certificate, set its CA bundle: SSL_CERT_FILE, or apt's CaInfo.",
        detail=redact(text),
    )


def _words(settings: Mapping[str, str], key: str) -> list[str]:
    return settings.get(key, "").split()


def _uv_index(settings: Mapping[str, Any]) -> str | None:
    for index in settings.get("index", []):
        if index.get("default"):
            return str(index["url"])
    url = settings.get("index-url") or settings.get("pip", {}).get("index-url")
    return str(url) if url else None


def _uv_settings() -> dict[str, Any]:
    """The user's uv.toml over the system's, top-level keys only."""
    named = os.environ.get("UV_CONFIG_FILE")
    folders = [Path(folder) for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    paths = [_SYSTEM / "uv" / "uv.toml", *(f / "uv" / "uv.toml" for f in reversed(folders))]
    paths.append(platformdirs.user_config_path("uv") / "uv.toml")
    settings: dict[str, Any] = {}
    for path in [Path(named)] if named else paths:
        if path.is_file():
            settings.update(toml.load(path))
    return settings


def _pip_settings() -> dict[str, str]:
    """pip's settings in pip's order: system, user, this environment, the file named, environment variables."""
    env = os.environ
    folders = [Path(folder) / "pip" for folder in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")]
    home = Path.home()
    paths = [*(f / "pip.conf" for f in folders), _SYSTEM / "pip.conf", home / ".pip" / "pip.conf"]
    paths += [platformdirs.user_config_path("pip") / "pip.conf", Path(sys.prefix) / "pip.conf"]
    if named := env.get("PIP_CONFIG_FILE"):
        paths = [] if named == os.devnull else [*paths, Path(named)]
    settings: dict[str, str] = {}
    for path in paths:
        if path.is_file():
            parser = configparser.RawConfigParser()
            try:
                parser.read(path, encoding="utf-8")
            except (configparser.Error, UnicodeDecodeError) as error:
                raise InputError(f"pip's settings cannot be read: {error}", place=Place(str(path))) from error
            for section in _PIP_SECTIONS:
                if parser.has_section(section):
                    settings.update({key.replace("_", "-"): value for key, value in parser.items(section)})
    for key in ("index-url", "cert", "client-cert", "proxy", "trusted-host"):
        if value := env.get(f"PIP_{key.upper().replace('-', '_')}"):
            settings[key] = value
    return settings
