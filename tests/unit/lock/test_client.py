"""What is taken from the settings of pip and uv, and in which order."""

import sys
from pathlib import Path

import pytest

from envbuilder.errors import InputError
from envbuilder.lock.client import python_client, redact


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture(autouse=True)
def _no_site_settings(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(bare_host / "venv"))
    monkeypatch.setattr("envbuilder.lock.client._SYSTEM", bare_host / "etc")


def test_a_bare_host_leaves_all_to_uv() -> None:
    client = python_client()
    assert (client.index, client.ca_bundle, client.proxy, client.insecure_hosts) == (None, None, None, ())
    assert "UV_DEFAULT_INDEX" not in client.environment()


def test_pips_settings_are_taken_from_file_and_environment(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        bare_host / ".config" / "pip" / "pip.conf",
        "[global]\nindex-url = http://user/simple\ncert = /ca.pem\nproxy = http://proxy:3128\n"
        "trusted-host = a.test\n  b.test\nextra-index-url = http://extra/simple\n",
    )
    write(bare_host / "etc" / "pip.conf", "[global]\nindex_url = http://system/simple\n")
    client = python_client()
    assert client.index == "http://user/simple"
    assert (client.ca_bundle, client.proxy) == ("/ca.pem", "http://proxy:3128")
    assert client.insecure_hosts == ("a.test", "b.test")
    env = client.environment()
    assert env["UV_DEFAULT_INDEX"] == "http://user/simple"
    assert env["SSL_CERT_FILE"] == "/ca.pem"
    assert env["ALL_PROXY"] == "http://proxy:3128"
    assert env["UV_INSECURE_HOST"] == "a.test b.test"
    assert not any("extra" in value for value in env.values())
    monkeypatch.setenv("PIP_INDEX_URL", "http://env/simple")
    assert python_client().index == "http://env/simple"


def test_uvs_own_settings_go_before_pips(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://pip/simple")
    write(bare_host / ".config" / "uv" / "uv.toml", '[[index]]\nurl = "http://uv/simple"\ndefault = true\n')
    assert python_client().index == "http://uv/simple"
    write(bare_host / ".config" / "uv" / "uv.toml", 'index-url = "http://old/simple"\n')
    assert python_client().index == "http://old/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://env/simple")
    assert python_client().index == "http://env/simple"


def test_the_environments_own_proxy_and_certificates_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_PROXY", "http://pip:1")
    monkeypatch.setenv("PIP_CERT", "/pip.pem")
    monkeypatch.setenv("https_proxy", "http://env:2")
    monkeypatch.setenv("SSL_CERT_FILE", "/env.pem")
    client = python_client()
    assert (client.proxy, client.ca_bundle) == (None, "/env.pem")
    assert client.environment()["https_proxy"] == "http://env:2"


def test_a_pip_configuration_that_is_switched_off_is_not_read(bare_host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(bare_host / ".config" / "pip" / "pip.conf", "[global]\nindex-url = http://user/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    assert python_client().index is None


@pytest.mark.parametrize(
    ("file", "text"), [("pip/pip.conf", "index-url"), ("uv/uv.toml", "= 3"), ("pip/pip.conf", "\x00[")]
)
def test_a_broken_settings_file_is_named(bare_host: Path, file: str, text: str) -> None:
    write(bare_host / ".config" / file, text)
    with pytest.raises(InputError) as caught:
        python_client()
    assert caught.value.place is not None
    assert caught.value.place.file == str(bare_host / ".config" / file)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("see http://ann:s3cret@host/simple now", "see http://host/simple now"),
        ("https://token@host:8080/x https://b:c@d/", "https://host:8080/x https://d/"),
        ("mail ann@host", "mail ann@host"),
    ],
)
def test_passwords_are_taken_out(text: str, shown: str) -> None:
    assert redact(text) == shown
