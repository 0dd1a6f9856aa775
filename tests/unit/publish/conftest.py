"""A host without logins or mirrors, and a registry on loopback."""

from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer

from envbuilder.fetch import download
from tests.fake_registry import FakeRegistry


@pytest.fixture(autouse=True)
def host(bare_host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home folder of somebody who has logged in nowhere."""
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "DOCKER_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(download, "_PAUSE_SECONDS", 0.01)
    return bare_host


@pytest.fixture
def registry(httpserver: HTTPServer) -> FakeRegistry:
    return FakeRegistry(httpserver)
