"""A real conda-lock installs a lock through our solver. The packages are stand-ins: they test the plumbing alone."""

from __future__ import annotations

import datetime
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from rattler_build import assemble_package

from envbuilder.errors import Place
from envbuilder.lock.conda import CondaOptions, solve_conda
from envbuilder.lock.conda_inputs import CondaInputs
from envbuilder.lock.conda_solvers import own_solver
from envbuilder.report.progress import Silent
from tests.channels import lay_out, record

FORGE = "https://conda.anaconda.org/conda-forge"
TOOL, LIBRARY = "tool-1.0-h_0.conda", "library-1.0-h_0.conda"


def stand_in(folder: Path, name: str, depends: list[str]) -> Path:
    """A package that holds one program, ``name``, made the same way each time."""
    program = folder / name / "bin" / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho {name} runs\n")
    program.chmod(0o755)
    made = assemble_package(
        name=name,
        version="1.0",
        target_platform="linux-64",
        build_string="h_0",
        output_dir=folder / "made",
        files_dir=folder / name,
        depends=depends,
        timestamp=datetime.datetime(2025, 1, 1, tzinfo=datetime.timezone.utc),
    )
    return Path(made.path)


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A folder with the lock of two stand-ins and their files."""
    records: list[dict[str, Any]] = []
    for name, depends in (("library", []), ("tool", ["library >=1"])):
        data = stand_in(tmp_path, name, depends).read_bytes()
        digests = {"md5": hashlib.md5(data).hexdigest(), "sha256": hashlib.sha256(data).hexdigest()}
        records.append({**record(name, "1.0", "h_0", depends), **digests})
    mirrors = lay_out(records, tmp_path / "channels")
    inputs = CondaInputs("mine", ("conda-forge",), ("tool ==1.0",), {"__glibc": "2.35"}, Place())
    lock = solve_conda(inputs, None, CondaOptions(mirrors=mirrors), Silent())
    (tmp_path / "mine.conda-lock.yml").write_text(lock)
    return tmp_path


def install(folder: Path, *mirrors: str, monkeypatch: pytest.MonkeyPatch) -> subprocess.CompletedProcess[str]:
    monkeypatch.setenv("ENVBUILDER_CONDA_MIRRORS", json.dumps({FORGE: list(mirrors)}))
    monkeypatch.setenv("CONDA_PKGS_DIRS", str(folder / "unpacked"))
    command = [sys.executable, "-m", "conda_lock", "install", "--conda", str(own_solver())]
    command += ["--prefix", str(folder / "env"), str(folder / "mine.conda-lock.yml")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def serve(httpserver: HTTPServer, path: str, data: bytes, kind: str = "application/octet-stream") -> None:
    httpserver.expect_request(path).respond_with_data(data, content_type=kind)


def test_a_lock_is_installed_over_http_from_the_mirror_that_has_it(
    locked: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (TOOL, LIBRARY):
        serve(httpserver, f"/second/linux-64/{name}", (locked / "made" / name).read_bytes())
    done = install(locked, httpserver.url_for("/first"), httpserver.url_for("/second"), monkeypatch=monkeypatch)
    assert done.returncode == 0, done.stderr
    program = locked / "env" / "bin" / "tool"
    assert subprocess.run([program], capture_output=True, text=True, check=True).stdout == "tool runs\n"
    listed = subprocess.run(
        [own_solver(), "list", "--prefix", locked / "env", "--json"], capture_output=True, text=True, check=True
    )
    assert [row["name"] for row in json.loads(listed.stdout)] == ["library", "tool"]
    meta = json.loads(next((locked / "env" / "conda-meta").glob("tool-*.json")).read_text())
    assert meta["url"] == f"{FORGE}/linux-64/{TOOL}"


@pytest.mark.parametrize("lie", ["a byte", "cut short", "a login page"])
def test_other_bytes_stop_the_install_and_the_mirror_is_named(
    locked: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    serve(httpserver, f"/m/linux-64/{LIBRARY}", (locked / "made" / LIBRARY).read_bytes())
    data = bytearray((locked / "made" / TOOL).read_bytes())
    data[-30] ^= 1
    bodies = {"a byte": bytes(data), "cut short": bytes(data[:-100]), "a login page": b"<html>log in</html>"}
    serve(httpserver, f"/m/linux-64/{TOOL}", bodies[lie], "text/html" if lie == "a login page" else "application/zip")
    done = install(locked, httpserver.url_for("/m"), monkeypatch=monkeypatch)
    assert done.returncode != 0
    assert f"{httpserver.url_for('/m')}/linux-64/{TOOL} is not the package of the lock" in done.stderr
    assert not (locked / "env").exists()


def test_what_nobody_serves_names_each_address(
    locked: Path, httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = install(locked, httpserver.url_for("/a"), httpserver.url_for("/b"), monkeypatch=monkeypatch)
    assert done.returncode != 0
    assert "is served by none of its addresses" in done.stderr
    assert httpserver.url_for("/a") in done.stderr
    assert httpserver.url_for("/b") in done.stderr


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (f"{FORGE}/linux-64/{TOOL}", "no digest stands behind"),
        (f"{FORGE}/linux-64/{TOOL}#abc", "no digest stands behind"),
        (f"{FORGE}/linux-64/tool.zip#{'0' * 32}", "neither a .conda nor a .tar.bz2"),
    ],
)
def test_an_explicit_list_without_digests_is_refused(tmp_path: Path, line: str, says: str) -> None:
    path = tmp_path / "explicit.txt"
    path.write_text(f"@EXPLICIT\n{line}\n")
    done = subprocess.run(
        [own_solver(), "create", "--file", path, "--prefix", tmp_path / "env", "--yes"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert says in done.stderr
    assert "explicit.txt:2" in done.stderr


def test_it_says_what_it_is_and_what_it_does_not_know() -> None:
    said = subprocess.run([own_solver(), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("envbuilder-solver ")
    unknown = subprocess.run([own_solver(), "remove"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "Commands: create, install, list, info, run" in unknown.stdout
