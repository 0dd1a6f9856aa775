import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from envbuilder.errors import HostError, InputError
from envbuilder.publish.credentials import login_for

HOST = "registry.example:5000"


def store(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return path


def auth(user: str, password: str) -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def helper(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "docker-credential-vault"
    folder.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat >/dev/null\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def test_nowhere_logged_in() -> None:
    assert login_for(HOST, "team/stack") is None


def test_dockers_own_store(host: Path) -> None:
    path = store(host / ".docker" / "config.json", {"auths": {HOST: auth("me", "secret:with colon")}})
    login = login_for(HOST, "team/stack")
    assert login
    assert (login.username, login.secret, login.identity, login.store) == ("me", "secret:with colon", False, path)
    assert login.command == f"docker login {HOST}"
    assert "secret" not in repr(login)
    assert login_for("other.example", "team/stack") is None


def test_docker_hub_goes_by_its_old_address(host: Path) -> None:
    store(host / ".docker" / "config.json", {"auths": {"https://index.docker.io/v1/": auth("me", "s")}})
    login = login_for("docker.io", "me/stack")
    assert login
    assert (login.username, login.command) == ("me", "docker login")


def test_docker_config_names_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "dc" / "config.json", {"auths": {HOST: auth("ci", "s")}})
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path / "dc"))
    assert login_for(HOST, "x")
    assert str(login_for(HOST, "x")).count("ci") == 1


def test_containers_store_goes_first_and_the_narrowest_login_wins(host: Path, tmp_path: Path) -> None:
    store(host / ".docker" / "config.json", {"auths": {HOST: auth("docker", "s")}})
    entries = {HOST: auth("all", "s"), f"{HOST}/team": auth("team", "s"), f"{HOST}/team/stack": auth("stack", "s")}
    store(tmp_path / "run" / "containers" / "auth.json", {"auths": entries})
    found = {name: login_for(HOST, name) for name in ("team/stack", "team/other", "teams")}
    assert {name: login and login.username for name, login in found.items()} == {
        "team/stack": "stack",
        "team/other": "team",
        "teams": "all",
    }
    assert found["teams"]
    assert found["teams"].command.endswith(f" login {HOST}")
    assert not found["teams"].command.startswith("docker")


def test_registry_auth_file_is_the_only_one(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(host / ".docker" / "config.json", {"auths": {HOST: auth("docker", "s")}})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(store(tmp_path / "a.json", {"auths": {}})))
    assert login_for(HOST, "x") is None
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(tmp_path / "missing.json"))
    with pytest.raises(InputError, match="names no file"):
        login_for(HOST, "x")


@pytest.mark.parametrize("where", [{"credsStore": "vault"}, {"credHelpers": {HOST: "vault"}}])
def test_a_credential_helper_is_asked(
    host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    store(host / ".docker" / "config.json", where)
    helper(tmp_path / "bin", f"""echo '{json.dumps({"Username": "me", "Secret": "s3"})}'""", monkeypatch)
    login = login_for(HOST, "x")
    assert login
    assert (login.username, login.secret, login.identity) == ("me", "s3", False)


def test_a_helper_may_keep_an_identity_token(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(host / ".docker" / "config.json", {"credsStore": "vault"})
    helper(tmp_path / "bin", f"""echo '{json.dumps({"Username": "<token>", "Secret": "refresh"})}'""", monkeypatch)
    login = login_for(HOST, "x")
    assert login
    assert (login.secret, login.identity) == ("refresh", True)


def test_a_helper_that_fails_is_told(host: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(host / ".docker" / "config.json", {"credsStore": "vault"})
    helper(tmp_path / "bin", "echo the vault is sealed; exit 3", monkeypatch)
    with pytest.raises(HostError, match="credential helper") as caught:
        login_for(HOST, "x")
    assert "sealed" in str(caught.value.detail)


@pytest.mark.filterwarnings("error")
def test_a_helper_that_is_not_there_is_told_once(host: Path) -> None:
    store(host / ".docker" / "config.json", {"credsStore": "nowhere"})
    with pytest.raises(HostError, match="credential helper") as caught:
        login_for(HOST, "x")
    assert "docker-credential-nowhere" in str(caught.value.detail)


@pytest.mark.parametrize(
    "content", ["{", "[" * 5000, "[]", '{"auths": {"x.example": {"auth": "###"}}}', '{"auths": 7}']
)
def test_a_damaged_store_is_told(host: Path, content: str) -> None:
    path = host / ".docker" / "config.json"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(InputError, match="damaged"):
        login_for(HOST, "x")
