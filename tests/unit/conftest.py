"""Hosts whose settings of pip and uv are the test's own."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from pytest_httpserver import HTTPServer

from envbuilder.lock import apt
from tests.debian_mirror import KEYRING, DebianMirror
from tests.python_index import Index

# How long an example takes says more of the machine's other work than of the code.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture
def bare_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host where neither pip nor uv is set to anything; its home folder."""
    for name in list(os.environ):
        if (
            name.startswith(("PIP_", "UV_"))
            or name.lower().endswith("_proxy")
            or name in ("SSL_CERT_FILE", "SSL_CERT_DIR")
        ):
            monkeypatch.delenv(name)
    home = tmp_path / "home"
    (home / ".config").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / ".config"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(home / "etc"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv cache"))
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))
    return home


@pytest.fixture
def index(httpserver: HTTPServer, bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> Index:
    """An index that the host is set to."""
    index = Index(httpserver)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.url)
    return index


@pytest.fixture
def debian_mirror(httpserver: HTTPServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DebianMirror:
    """A Debian mirror whose index this host trusts; apt's state is kept in a cache of its own."""
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "a cache"))
    monkeypatch.setattr(apt, "KEYRING", KEYRING)
    return DebianMirror(httpserver, tmp_path / "archive")
