"""Two images side by side: what is found to differ, why, and what it comes to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from envbuilder.errors import HostError, InputError, IntegrityError, NotEnoughError
from envbuilder.publish.differing import causes
from envbuilder.publish.recorded import Recorded, find_recipe
from envbuilder.publish.reproduce import compare, reproduce
from envbuilder.report.model import Report, Verdict
from envbuilder.report.progress import Silent

SITE = "opt/venv/lib/python3.11/site-packages"
RECORD = f"{SITE}/idna-3.10.dist-info/RECORD"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENVBUILDER_CACHE", str(tmp_path / "cache"))


def layer(files: dict[str, Any]) -> bytes:
    """A tar archive: name -> content, or a TarInfo's fields."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, value in files.items():
            member = tarfile.TarInfo(name)
            content = b"" if isinstance(value, dict) else value
            member.mtime, member.mode = 1757289600, 0o644
            for key, given in value.items() if isinstance(value, dict) else ():
                if key == "content":
                    content = given
                else:
                    setattr(member, key, given)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def image(
    path: Path, *layers: bytes, packed: bool = False, said: tuple[bytes, ...] | None = None, **config: Any
) -> str:
    """A docker archive of an image; ``said`` are the layers its configuration names."""
    body = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"User": "trainer", "Env": ["A=1"], "Labels": {"x": "y"}, **config.pop("config", {})},
        "rootfs": {"diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in said or layers]},
        "history": [{"created": "2025-09-08T00:00:00Z", "created_by": "RUN x"}],
        **config,
    }
    manifest = [{"Config": "config.json", "Layers": [f"{n}/layer.tar" for n in range(len(layers))]}]
    parts = {f"{n}/layer.tar": gzip.compress(data) if packed else data for n, data in enumerate(layers)}
    parts |= {"config.json": json.dumps(body).encode(), "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(layer(parts))
    return str(path)


def compared(tmp_path: Path, first: list[bytes], second: list[bytes], **config: Any) -> Report:
    one, other = image(tmp_path / "1.tar", *first), image(tmp_path / "2.tar", *second, **config)
    return compare(one, other, "auto", Silent())


def told(report: Report) -> dict[str, list[tuple[str, str]]]:
    """By cause: place and aspect of each difference."""
    return {
        cause: [(row["place"], row["aspect"]) for row in found["listed"]]
        for cause, found in report.facts.get("differences", {}).items()
    }


BASE = layer({"etc": {"type": tarfile.DIRTYPE, "mode": 0o755}, "etc/a": b"a", "etc/b": b"b"})


def test_the_same_bytes_are_digest_equal_however_they_are_packed(tmp_path: Path) -> None:
    one, other = image(tmp_path / "1.tar", BASE), image(tmp_path / "2.tar", BASE, packed=True)
    report = compare(one, other, "auto", Silent())
    assert (report.facts["level"], report.verdict.exit_code) == ("digest-equal", 0)
    assert report.facts["digest"] in report.summary


def test_the_same_files_in_other_layers_with_other_times_are_content_equal(tmp_path: Path) -> None:
    first = [BASE, layer({"etc/a": b"new", "etc/.wh.b": b""})]
    second = [
        layer({"etc": {"type": tarfile.DIRTYPE, "mode": 0o755}}),
        layer({"etc/a": {"content": b"new", "mtime": 1}}),
    ]
    report = compared(tmp_path, first, second, history=[], created="2026-01-01T00:00:00Z")
    assert (report.facts["level"], report.verdict, report.verdict.exit_code) == ("content-equal", Verdict.YES, 0)
    assert told(report) == {
        "history": [("created", "setting"), ("history.1", "setting")],
        "layers": [("layers", "setting")],
        "file-times": [("/etc/a", "time")],
    }


@pytest.mark.parametrize(
    ("first", "second", "cause", "place", "aspect"),
    [
        ({"x/m.pyc": b"1"}, {"x/m.pyc": b"2"}, "bytecode", "/x/m.pyc", "content"),
        ({}, {"var/log/dpkg.log": b"2"}, "logs-and-caches", "/var/log/dpkg.log", "presence"),
        ({f"{SITE}/envbuilder/errors.py": b"1"}, {}, "own-files", f"/{SITE}/envbuilder/errors.py", "presence"),
        ({"opt/venv/pyvenv.cfg": b"uv = 1"}, {"opt/venv/pyvenv.cfg": b"uv = 2"}, "other-uv", "/opt/venv/pyvenv.cfg",
         "content"),
        ({RECORD: b"a,,\nb,,\n"}, {RECORD: b"a,,\nc,,\n"}, "record", f"/{RECORD}", "content"),
        ({"etc/hostname": b"one"}, {"etc/hostname": b"two"}, "host-names", "/etc/hostname", "content"),
        ({"bin/x": {"uid": 0}}, {"bin/x": {"uid": 1000}}, "owners", "/bin/x", "owner"),
        ({"bin/x": {"mode": 0o755}}, {"bin/x": {"mode": 0o4755}}, "modes", "/bin/x", "mode"),
        ({"bin/x": {"pax_headers": {"SCHILY.xattr.security.capability": "v"}}}, {"bin/x": b""}, "attributes", "/bin/x",
         "attributes"),
        ({f"{SITE}/torch/x.so": b"1"}, {f"{SITE}/torch/x.so": b"2"}, "packages", f"/{SITE}/torch/x.so", "content"),
        ({"bin/sh": {"type": tarfile.SYMTYPE, "linkname": "dash"}},
         {"bin/sh": {"type": tarfile.SYMTYPE, "linkname": "bash"}}, "unknown", "/bin/sh", "link"),
        ({"bin/sh": b"x"}, {"bin/sh": {"type": tarfile.SYMTYPE, "linkname": "bash"}}, "unknown", "/bin/sh", "kind"),
    ],
)  # fmt: skip
def test_every_difference_has_its_cause(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], cause: str, place: str, aspect: str
) -> None:
    report = compared(tmp_path, [BASE, layer(first)], [BASE, layer(second)])
    assert (place, aspect) in told(report)[cause]
    assert set(told(report)) <= {cause, "layers"}
    assert (report.facts["level"], report.verdict.exit_code) == ("different", 1)
    finding = next(f for f in report.findings if f.rule == cause)
    assert finding.cause
    assert finding.cure
    assert any(place in line for line in finding.evidence)


def test_the_order_of_a_list_of_files_alone_changes_nothing(tmp_path: Path) -> None:
    report = compared(tmp_path, [layer({RECORD: b"a,,\nb,,\n"})], [layer({RECORD: b"b,,\na,,\n"})])
    assert told(report)["record-order"] == [(f"/{RECORD}", "content")]
    assert report.facts["level"] == "content-equal"


def test_the_marks_of_a_store_change_nothing_and_hide_nothing(tmp_path: Path) -> None:
    marks = {"SCHILY.xattr.user.overlay.origin": "", "SCHILY.xattr.user.overlay.impure": "y"}
    report = compared(tmp_path, [layer({"bin/x": {"pax_headers": marks}})], [layer({"bin/x": b""})])
    assert told(report)["store-marks"] == [("/bin/x", "attributes")]
    assert report.facts["level"] == "content-equal"
    more = {**marks, "SCHILY.xattr.security.capability": "x"}
    report = compared(tmp_path, [layer({"bin/x": {"pax_headers": more}})], [layer({"bin/x": b""})])
    assert told(report)["attributes"] == [("/bin/x", "attributes")]
    assert report.facts["level"] == "different"


def test_what_is_run_counts_as_content(tmp_path: Path) -> None:
    report = compared(tmp_path, [BASE], [BASE], config={"User": "root", "Env": ["A=2"]})
    assert told(report) == {"settings": [("env.A", "setting"), ("user", "setting")]}
    assert report.facts["level"] == "different"


def test_layers_lie_on_one_another_as_in_a_container(tmp_path: Path) -> None:
    """A folder emptied, a folder replaced by a file, a second name of a file."""
    first = [
        layer({"d": {"type": tarfile.DIRTYPE}, "d/x": b"x", "e": {"type": tarfile.DIRTYPE}, "e/y": b"y", "e0": b"0"}),
        layer({"d": {"type": tarfile.DIRTYPE}, "d/.wh..wh..opq": b"", "d/z": b"z", "e": b"now a file"}),
    ]
    second = [
        layer({"d": {"type": tarfile.DIRTYPE}, "d/z": {"type": tarfile.LNKTYPE, "linkname": "q"}, "e0": b"0"}),
        layer({"q": b"z", "d/z": {"type": tarfile.LNKTYPE, "linkname": "q"}, "e": b"now a file", ".wh.r": b""}),
        layer({".wh.q": b""}),
    ]
    report = compared(tmp_path, first, second)
    assert told(report) == {"layers": [("layers", "setting")]}


def test_an_archive_whose_layer_is_not_the_named_one_is_refused(tmp_path: Path) -> None:
    """The configuration, and so the digest, is that of the good image; the bytes are another's."""
    good = image(tmp_path / "1.tar", BASE)
    bad = image(tmp_path / "2.tar", layer({"etc/a": b"evil"}), said=(BASE,))
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(IntegrityError, match="other bytes than its digest"):
            compare(*pair, "auto", Silent())


def test_a_damaged_or_hostile_archive_is_told_as_such(tmp_path: Path) -> None:
    good = image(tmp_path / "1.tar", BASE)
    cut = tmp_path / "cut.tar"
    cut.write_bytes(Path(image(tmp_path / "2.tar", BASE, packed=True)).read_bytes()[:700])
    junk = image(tmp_path / "junk.tar", b"\x1f\x8b" + b"no gzip" * 99)
    out = image(tmp_path / "out.tar", layer({"../../etc/x": b"x"}))
    short = image(tmp_path / "short.tar", BASE, said=(BASE, b"more"))
    empty = tmp_path / "empty.tar"
    empty.write_bytes(layer({"hello": b""}))
    deep = tmp_path / "deep.tar"
    told = {"manifest.json": b'[{"Config": "c", "Layers": ["l"]}]', "c": b"[" * 100_000, "l": BASE}
    deep.write_bytes(layer(told))
    for path in (str(cut), junk, out, short, str(empty), str(deep)):
        with pytest.raises(InputError) as caught:
            compare(good, path, "auto", Silent())
        assert caught.value.cure


def test_no_such_image_and_no_such_kind_of_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_engine(name: str) -> None:
        raise HostError(f"no {name}")

    monkeypatch.setattr("envbuilder.publish.reproduce.choose_engine", no_engine)
    with pytest.raises(InputError, match="there is no image nothing/here:1"):
        reproduce("nothing/here:1", "auto", None, Silent())
    (tmp_path / "text").write_text("hello")
    with pytest.raises(InputError, match="no image archive"):
        reproduce(str(tmp_path / "text"), "auto", None, Silent())


def test_an_image_that_envbuilder_did_not_make_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class StandInEngine:
        name = "buildah"

    monkeypatch.setattr("envbuilder.publish.reproduce.choose_engine", lambda _: StandInEngine())
    with pytest.raises(InputError, match="not made by envbuilder") as caught:
        reproduce(image(tmp_path / "1.tar", BASE), "auto", None, Silent())
    assert "--compare" in (caught.value.cure or "")


def test_a_lock_that_is_not_here_is_told_with_what_to_do(tmp_path: Path) -> None:
    labels = {"io.envbuilder.lock": f"sha256:{'0' * 64}", "io.envbuilder.stack": "p40-debian"}
    with pytest.raises(NotEnoughError) as caught:
        find_recipe(Recorded(labels), None, Silent())
    assert "--bundle" in (caught.value.cure or "")
    assert "the lock of p40-debian is sha256:" in (caught.value.detail or "")
    with pytest.raises(NotEnoughError, match="is not here") as caught:
        find_recipe(Recorded({**labels, "io.envbuilder.stack": "gone"}), None, Silent())
    assert "there is no stack named 'gone'" in (caught.value.detail or "")
    with pytest.raises(InputError):
        find_recipe(Recorded({**labels, "io.envbuilder.stack": "../../x"}), None, Silent())


def test_a_stack_that_changed_beside_its_lock_is_not_taken(tmp_path: Path) -> None:
    from envbuilder.lock.reading import load_lock
    from envbuilder.stack.loading import load_stack
    from envbuilder.stack.manifest import image_manifest

    stack, gpu = load_stack("p40-debian")
    lock = load_lock(stack)
    labels = {"io.envbuilder.lock": lock.digest, "io.envbuilder.stack": stack.name, "io.envbuilder.target": "devel"}
    manifest = json.loads(json.dumps(image_manifest(stack, gpu, lock.digest)))
    recipe, project = find_recipe(Recorded(labels, manifest), None, Silent())
    assert (recipe.stack, recipe.lock.digest, recipe.target, recipe.slim, project) == (
        stack, lock.digest, "devel", False, None,
    )  # fmt: skip
    manifest["stack"]["title"] = "another"
    with pytest.raises(NotEnoughError) as caught:
        find_recipe(Recorded(labels, manifest), None, Silent())
    assert "the lock is the same, but not stack.title" in (caught.value.detail or "")


def test_every_cause_says_what_to_do_and_the_last_one_takes_all() -> None:
    assert all(cause.title and cause.why and cause.cure for cause in causes())
    assert len({cause.id for cause in causes()}) == len(causes())
    assert causes()[-1].paths == ("*",)
    assert next(cause for cause in causes() if cause.id == "settings").fields == ("*",)
