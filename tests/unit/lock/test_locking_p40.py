"""All of p40 locked at once: real conda records on disk, stand-ins of the Python packages on loopback."""

import json
import re
from pathlib import Path

import pytest
from pytest_httpserver import HTTPServer
from ruamel.yaml import YAML

from envbuilder import data
from envbuilder.cli import run
from envbuilder.data import builtin_root
from envbuilder.errors import Place
from envbuilder.lock import locking
from envbuilder.lock.indexes import Wanted, index_named, recorded_file
from envbuilder.lock.locking import Wish, lock_stack
from envbuilder.lock.memory import channels_state
from envbuilder.lock.python import python_tags, target_of
from envbuilder.report.progress import Silent
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack
from tests.channels import lay_out, real_records, record
from tests.python_index import LATE, Index, wheel

LOCKS = builtin_root() / "locks"


@pytest.fixture
def project(index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of p40 alone on a host that reaches nothing but loopback."""
    folder = tmp_path / "project"
    (folder / "stacks").mkdir(parents=True)
    (folder / "stacks" / "p40.toml").write_text((builtin_root() / "stacks" / "p40.toml").read_text())
    mirrors = {**lay_out(real_records(), tmp_path / "channels"), "https://download.pytorch.org": ["http://127.0.0.1:9"]}
    lines = [f'"{prefix}" = {json.dumps(addresses)}' for prefix, addresses in mirrors.items()]
    (folder / "envbuilder.toml").write_text("[mirrors.replace]\n" + "\n".join(lines) + "\n")
    monkeypatch.chdir(folder)
    stack, _ = load_stack("p40")
    torch = recorded_file(
        index_named("pytorch-cu118", Place()), Wanted("torch", "2.6.0+cu118", python_tags(target_of(stack)))
    )
    assert torch is not None
    for requirement in torch.requires:
        name, _, pin = requirement.split(" ;")[0].partition("==")
        serve(index, name.split(">=")[0], pin or "4.12.0")
    serve(index, "verl", "0.5.0", "torch", "transformers")
    serve(index, "transformers", "4.56.1")
    serve(index, "setuptools", "80.9.0")
    return folder


def serve(index: Index, name: str, version: str, *requires: str, late: bool = False) -> None:
    module = name.replace("-", "_")
    content = wheel(module, version, *requires)
    index.add(f"{module}-{version}-py3-none-any.whl", content, **({"uploaded": LATE} if late else {}))


def texts(project: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (project / "locks").iterdir()}


def lock(stack: Stack, **wish: object) -> locking.Locked:
    return lock_stack(stack, Wish(**wish), Silent())  # type: ignore[arg-type]


def test_locked_at_once_and_the_same_after_the_index_has_moved_on(
    project: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _ = load_stack("p40")
    done = lock(stack)
    first = texts(project)
    assert set(first) == {
        "p40.requirements.txt",
        "p40.conda-lock.yml",
        "p40.sources.toml",
        "p40.environment.yml",
        "p40.virtual-packages.yml",
    }
    for name in ("p40.conda-lock.yml", "p40.sources.toml", "p40.environment.yml", "p40.virtual-packages.yml"):
        assert first[name] == (LOCKS / name).read_text()
    assert "group vision is not locked" in done.notes[0]
    assert [a.name for a in done.now.python if a.index] == ["torch"]
    assert not any("127.0.0.1" in text or "localhost" in text for text in first.values())
    # The index has moved on, and nothing is remembered.
    serve(index, "transformers", "5.20.0", late=True)
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "another cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another uv cache"))
    assert lock(stack).changed == ()
    assert texts(project) == first


def test_what_was_solved_is_remembered_until_a_source_changes(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _ = load_stack("p40")
    lock(stack)
    solved: list[str] = []

    def solve(*_: object) -> str:
        solved.append("conda")
        return (LOCKS / "p40.conda-lock.yml").read_text()

    def resolve(*_: object, **__: object) -> tuple[()]:
        solved.append("python")
        return ()

    monkeypatch.setattr(locking, "lock_conda", solve)
    monkeypatch.setattr(locking, "lock_python", resolve)
    assert lock(stack).changed == ()
    assert solved == []
    # An index of a channel has changed: the conda half is solved anew, and only it.
    newer = [*real_records(), record("ninja", "1.13.0", "h_0")]
    lay_out(newer, tmp_path / "channels")
    lock(stack)
    assert solved == ["conda"]


def test_a_damaged_memory_is_not_used(project: Path, tmp_path: Path) -> None:
    stack, _ = load_stack("p40")
    lock(stack)
    first = texts(project)
    for path in (tmp_path / "cache" / "solved").iterdir():
        path.write_text(path.read_text().replace("4.56.1", "6.6.6").replace("8.9.7.29", "8.9.9.9"))
    assert lock(stack).changed == ()
    assert texts(project) == first


def test_one_python_package_moves_alone(project: Path, index: Index) -> None:
    stack, _ = load_stack("p40")
    lock(stack)
    before = texts(project)
    serve(index, "transformers", "4.57.0")
    serve(index, "filelock", "5.0.0")
    done = lock(stack, update=("transformers",))
    after = {a.name: a.version for a in done.now.python}
    assert after["transformers"] == "4.57.0"
    assert after["filelock"] == "4.12.0"
    assert texts(project)["p40.conda-lock.yml"] == before["p40.conda-lock.yml"]


def test_an_update_over_a_lock_from_elsewhere_gives_a_whole_lock(
    project: Path, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, _ = load_stack("p40")
    lock(stack)
    before = texts(project)
    elsewhere = tmp_path / "built in"
    elsewhere.mkdir()
    for name in ("stacks", "gpus", "templates"):
        (elsewhere / name).symlink_to(builtin_root() / name)
    (project / "locks").rename(elsewhere / "locks")
    monkeypatch.setattr(data, "builtin_root", lambda: elsewhere)
    serve(index, "transformers", "4.57.0")
    done = lock(stack, update=("transformers",))
    after = texts(project)
    assert set(after) == set(before)
    assert {name for name in after if after[name] != before[name]} == {"p40.requirements.txt"}
    assert done.now.conda == done.before.conda != ()


def test_updating_what_is_not_there_is_said(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock(load_stack("p40")[0])
    assert run(["lock", "p40", "--update", "tensorflow"]) == 2
    assert "holds no package named tensorflow" in capsys.readouterr().err


def test_the_cutoff_can_be_moved(project: Path, index: Index) -> None:
    serve(index, "transformers", "5.20.0", late=True)
    assert run(["lock", "p40", "--cutoff", "2026-01-01"]) == 0
    text = texts(project)["p40.requirements.txt"]
    assert "transformers==5.20.0" in text
    assert "Uploads before 2026-01-01" in text
    assert run(["lock", "p40", "--check"]) == 1


def test_offline_it_locks_from_what_is_kept(project: Path, index: Index) -> None:
    lock(load_stack("p40")[0])
    first = texts(project)
    index.files.clear()
    assert run(["lock", "p40", "--offline"]) == 0
    assert texts(project) == first


def test_both_halves_in_one_file_for_a_stock_conda_lock(project: Path, index: Index) -> None:
    assert run(["lock", "p40", "--unified"]) == 0
    path = project / "p40.unified-conda-lock.yml"
    packages = YAML(typ="safe").load(path.read_text())["package"]
    by_manager = {manager: {p["name"] for p in packages if p["manager"] == manager} for manager in ("conda", "pip")}
    assert "cudnn" in by_manager["conda"]
    assert {"torch", "verl", "triton"} <= by_manager["pip"]
    torch = next(p for p in packages if p["name"] == "torch")
    assert torch["url"] == ("https://download.pytorch.org/whl/cu118/torch-2.6.0%2Bcu118-cp310-cp310-linux_x86_64.whl")
    # A stock conda-lock reads it.
    from conda_lock.lockfile import parse_conda_lock_file

    parsed = parse_conda_lock_file(path)
    assert len(parsed.package) == len(packages)


def test_nothing_is_written_when_one_half_fails(project: Path, index: Index) -> None:
    index.files = {name: entry for name, entry in index.files.items() if not name.startswith("triton")}
    assert run(["lock", "p40"]) != 0
    assert not (project / "locks").exists()


def test_the_state_of_a_channel_is_asked_or_unknown(httpserver: HTTPServer, tmp_path: Path) -> None:
    httpserver.expect_request(re.compile("/good/.*")).respond_with_data("{}", headers={"ETag": '"1"'})
    httpserver.expect_request(re.compile("/silent/.*")).respond_with_data("{}")
    good, silent = httpserver.url_for("/good"), httpserver.url_for("/silent")
    assert channels_state([good]) == [f'{good}/{s}/repodata.json "1"' for s in ("linux-64", "noarch")]
    assert channels_state([good, silent]) is None
    assert channels_state([good, "http://127.0.0.1:9/gone"]) is None
    assert channels_state([tmp_path.as_uri()]) is None
