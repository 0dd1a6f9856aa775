"""Sessions carry the settings of pip, uv and apt, and no password to a host it is not for."""

from pathlib import Path

import pytest
import requests

from envbuilder.fetch import transport
from envbuilder.fetch.transport import debian_session, new_session, python_session
from envbuilder.lock.client import python_client, untrusted


def header(session: requests.Session, url: str) -> str | None:
    """The Authorization header a request would carry."""
    return session.prepare_request(requests.Request("GET", url)).headers.get("Authorization")


@pytest.fixture(autouse=True)
def _bare(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_apt_settings", dict)
    monkeypatch.setattr(transport, "_apt_login", lambda _: None)


def test_the_hosts_certificates_are_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.touch()
    monkeypatch.setenv("PIP_CERT", str(bundle))
    assert new_session().verify == str(bundle)
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "gone.pem"))
    assert new_session().verify != str(tmp_path / "gone.pem")


def test_the_password_of_the_index_goes_to_its_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://ann:s%40cret@index.test/simple")
    session = python_session(python_client())
    assert header(session, "https://index.test/files/a.whl") == "Basic YW5uOnNAY3JldA=="
    assert header(session, "https://files.test/a.whl") is None


def test_pips_proxy_client_certificate_and_trusted_host_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", "http://proxy:3128")
    monkeypatch.setenv("PIP_CLIENT_CERT", "/client.pem")
    monkeypatch.setenv("PIP_INDEX_URL", "https://index.test:8443/simple")
    monkeypatch.setenv("PIP_TRUSTED_HOST", "index.test:8443")
    session = python_session(python_client())
    assert session.proxies["https"] == "http://proxy:3128"
    assert session.cert == "/client.pem"
    assert session.verify is False


@pytest.mark.parametrize(
    ("settings", "proxies", "environment"),
    [
        ({}, {}, True),
        ({"Acquire::http::Proxy": "http://apt:3142"}, {"http": "http://apt:3142"}, False),
        ({"Acquire::http::Proxy": "http://apt:3142", "Acquire::http::Proxy::mirror.test": "DIRECT"}, {}, False),
        ({"Acquire::http::Proxy::other.test": "http://apt:3142"}, {}, True),
    ],
)
def test_apts_proxy_is_taken(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], proxies: dict[str, str], environment: bool
) -> None:
    monkeypatch.setattr(transport, "_apt_settings", lambda: settings)
    session = debian_session("http://mirror.test/debian")
    assert dict(session.proxies) == proxies
    assert session.trust_env is environment


def test_apts_passwords_and_certificates_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_apt_settings", lambda: {"Acquire::https::CaInfo": "/apt.pem"})
    monkeypatch.setattr(transport, "_apt_login", lambda host: ("ann", "pw") if host == "mirror.test" else None)
    session = debian_session("https://mirror.test/debian")
    assert session.verify == "/apt.pem"
    assert header(session, "https://mirror.test/debian/pool/a.deb") == "Basic YW5uOnB3"
    assert header(session, "https://elsewhere.test/a.deb") is None
    assert header(debian_session("http://bob:pw@m.test/d"), "http://m.test/d/x") == "Basic Ym9iOnB3"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "certificate verify failed: certificate is not yet valid",
            "is not valid yet, by this host's clock",
        ),
        ("certificate verify failed: certificate has expired (_ssl.c:1007)", "has expired, by this host's clock"),
        ("certificate verify failed: self signed certificate", "is not trusted here"),
    ],
)
def test_a_wrong_clock_here_is_told_apart_from_a_bad_certificate(said: str, told: str) -> None:
    assert told in untrusted("registry.example", OSError(said)).message
