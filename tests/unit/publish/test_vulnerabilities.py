"""OSV records against packages. The records are written here in the format osv.dev publishes; their ids are ours."""

import json
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envbuilder.cli import run
from envbuilder.errors import InputError
from envbuilder.publish.sbom.inventory import contents_of
from envbuilder.publish.sbom.model import Component, Kind, System
from envbuilder.publish.vulnerabilities.matching import Matcher, queries_of
from envbuilder.publish.vulnerabilities.records import read_databases
from envbuilder.publish.vulnerabilities.reporting import known_vulnerabilities
from envbuilder.report.model import Severity, Verdict
from envbuilder.report.progress import Silent
from tests.unit.publish.stand_in_image import archive, files, lock

COMMIT = "e" * 40


def affected(ecosystem, name, events=(), kind="ECOSYSTEM", **more):
    ranges = [{"type": kind, "events": [dict([event]) for event in events]}] if events else []
    return {"package": {"ecosystem": ecosystem, "name": name}, "ranges": ranges, **more}


def record(identifier, *parts, **more):
    return {
        "schema_version": "1.7.0", "id": identifier, "modified": "2026-11-01T00:00:00Z",
        "summary": f"Fault of {identifier}", "affected": list(parts), **more,
    }  # fmt: skip


def matched(component, found):
    matcher = Matcher(tuple(queries_of((component,), System("debian", "12"))))
    return [(match.fixed, match.sure) for match in matcher.matches(found)]


def python(version, name="alpha"):
    return Component(Kind.PYTHON, name, version, f"pkg:pypi/{name}@{version}")


def debian(version, source="demo"):
    return Component(Kind.DEBIAN, "libdemo1", version, "pkg:deb/debian/libdemo1", source=(source, version))


@pytest.mark.parametrize(
    ("version", "events", "fixed"),
    [
        ("1.0", [("introduced", "0"), ("fixed", "1.1")], "1.1"),
        ("1.1", [("introduced", "0"), ("fixed", "1.1")], None),
        ("1.1rc1", [("introduced", "0"), ("fixed", "1.1")], "1.1"),
        ("1.10", [("introduced", "1.9"), ("fixed", "1.11")], "1.11"),
        ("1.8", [("introduced", "1.9"), ("fixed", "1.11")], None),
        ("1.0", [("introduced", "0"), ("last_affected", "1.0")], ""),
        ("1.0.post1", [("introduced", "0"), ("last_affected", "1.0")], None),
        ("9", [("introduced", "0")], ""),
        # Two stretches, and their events in no order.
        ("2.5", [("fixed", "1.5"), ("introduced", "2.0"), ("introduced", "0"), ("fixed", "2.6")], "2.6"),
        ("1.7", [("fixed", "1.5"), ("introduced", "2.0"), ("introduced", "0"), ("fixed", "2.6")], None),
        ("1.0", [("introduced", "0"), ("fixed", "1.5"), ("introduced", "2.0"), ("fixed", "2.6")], "1.5"),
        ("2.0", [("introduced", "0"), ("fixed", "2.0"), ("introduced", "2.0")], ""),
        ("2.0", [("introduced", "0"), ("limit", "1.5")], None),
        ("1.0", [("introduced", "0"), ("limit", "1.5")], ""),
        ("1.0", [("introduced", "0"), ("limit", "*")], ""),
        ("1.0", [("fixed", "1.5")], None),
        ("1.0", [("introduced", "no version"), ("fixed", "1.5")], None),
        ("1.0+cu118", [("introduced", "0"), ("last_affected", "1.0")], None),
    ],
)
def test_ranges_of_python_versions(version, events, fixed):
    found = matched(python(version), record("X-1", affected("PyPI", "alpha", events)))
    assert found == ([] if fixed is None else [(fixed, True)])


@pytest.mark.parametrize(
    ("version", "events", "fixed"),
    [
        ("1:1.0-1+b1", [("introduced", "0"), ("fixed", "1:1.0-1+deb12u1")], "1:1.0-1+deb12u1"),
        ("1:1.0-1+deb12u1", [("introduced", "0"), ("fixed", "1:1.0-1+deb12u1")], None),
        ("2.0-1", [("introduced", "0"), ("fixed", "1:0.5-1")], "1:0.5-1"),
        ("1.0~rc1-1", [("introduced", "1.0-1")], None),
        ("1.0~rc1-1", [("introduced", "0"), ("fixed", "1.0-1")], "1.0-1"),
    ],
)
def test_ranges_of_debian_versions(version, events, fixed):
    for ecosystem in ("Debian:12", "Debian"):
        found = matched(debian(version), record("X-1", affected(ecosystem, "demo", events)))
        assert found == ([] if fixed is None else [(fixed, True)])
    assert matched(debian(version), record("X-1", affected("Debian:11", "demo", events))) == []
    assert matched(debian(version), record("X-1", affected("PyPI", "demo", events))) == []


@given(
    st.lists(st.tuples(st.sampled_from(["introduced", "fixed"]), st.integers(1, 9)), max_size=8),
    st.integers(1, 9),
)
def test_events_mean_the_same_in_any_order(events, version):
    """Against the plain reading: the last event at or below the version decides; at one version, opening is last."""
    below = sorted((at, kind == "introduced") for kind, at in events if at <= version)
    wanted = bool(below) and below[-1][1]
    for given_order in (events, events[::-1], sorted(events)):
        found = matched(
            python(str(version)), record("X", affected("PyPI", "alpha", [(k, str(n)) for k, n in given_order]))
        )
        assert bool(found) == wanted


def test_listed_versions_count_in_any_spelling():
    assert matched(python("1.0"), record("X-1", affected("PyPI", "Alpha", versions=["0.9", "1.0.0"]))) == [("", True)]
    assert matched(python("1.0"), record("X-1", affected("PyPI", "alpha", versions=["0.9", 7, "x"]))) == []


def test_what_was_withdrawn_counts_no_more():
    found = record("X-1", affected("PyPI", "alpha", [("introduced", "0")]), withdrawn="2026-01-01T00:00:00Z")
    assert matched(python("1.0"), found) == []


def test_commits_are_told_only_where_they_are_named():
    source = Component(Kind.SOURCE, "apex", "0.1", "pkg:github/nvidia/apex@e",
                       properties={"repository": "https://github.com/NVIDIA/apex", "commit": COMMIT})  # fmt: skip

    def found(*events):
        git = {"type": "GIT", "repo": "https://github.com/nvidia/apex.git", "events": [dict([e]) for e in events]}
        return matched(source, record("X-1", {"ranges": [git]}))

    assert found(("introduced", "0"), ("last_affected", COMMIT)) == [("", True)]
    assert found(("introduced", "0"), ("fixed", COMMIT)) == []
    assert found(("introduced", "0"), ("fixed", "f" * 40)) == [("f" * 40, False)]


@pytest.mark.parametrize(
    "odd",
    [
        {"id": "X", "affected": None},
        {"id": "X", "affected": [3, {"package": []}]},
        {"id": "X", "affected": [{"package": {"name": 3, "ecosystem": None}, "ranges": "x", "versions": {}}]},
        {"id": "X", "affected": [affected("PyPI", "alpha", kind="NOVEL", events=[("introduced", "0")])]},
        {"id": "X", "affected": [{"package": {"name": "alpha", "ecosystem": "PyPI"}, "ranges": [{"events": [None]}]}]},
    ],
)
def test_odd_records_match_nothing(odd):
    assert matched(python("1.0"), odd) == []


@pytest.fixture
def contents(tmp_path):
    return contents_of(archive(tmp_path / "image.tar", files()), Silent(), lock())


def database(path, *records):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for one in records:
            made.writestr(f"{one['id']}.json", json.dumps(one))
    return path


RATED = {"severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:H/I:H/A:H"}]}
MILD = {"severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:L/AC:H/PR:H/UI:R/S:U/C:L/I:N/A:N"}]}


def test_a_report_names_fault_severity_and_the_version_without_it(contents, tmp_path):
    path = database(
        tmp_path / "all.zip",
        record(
            "GHSA-1", affected("PyPI", "alpha", [("introduced", "0"), ("fixed", "1.2")]), aliases=["CVE-1"], **RATED
        ),
        record("PYSEC-1", affected("PyPI", "alpha", [("introduced", "0"), ("fixed", "1.2")]), aliases=["CVE-1"]),
        record("DEBIAN-CVE-2", affected("Debian:12", "demo", [("introduced", "0")]), upstream=["CVE-2"], **MILD),
        record("X-OTHER", affected("PyPI", "someone-else", [("introduced", "0")])),
    )
    report = known_vulnerabilities(contents, (path,), "image", Silent())
    assert report.verdict is Verdict.NO
    first, second = report.findings
    assert (first.rule, first.severity, first.title) == ("GHSA-1", Severity.ERROR, "alpha 1.0.0: Fault of GHSA-1")
    assert first.cause.startswith("CVE-1, GHSA-1, PYSEC-1; 9.8 of 10")
    assert first.cure.startswith("Fixed in 1.2")
    assert (second.severity, second.cure) == (Severity.WARNING, "No fixed version is known.")
    assert report.facts["records"] == 4
    assert report.facts["newest"] == "2026-11-01T00:00:00Z"
    assert report.facts["vulnerabilities"][0]["ids"] == ["CVE-1", "GHSA-1", "PYSEC-1"]


def test_unimportant_for_debian_is_advice(contents, tmp_path):
    part = affected("Debian:12", "demo", [("introduced", "0")], ecosystem_specific={"urgency": "unimportant"})
    report = known_vulnerabilities(contents, (database(tmp_path / "d.zip", record("D-1", part)),), "image", Silent())
    assert [finding.severity for finding in report.findings] == [Severity.ADVICE]


def test_nothing_found_is_a_yes_only_where_everything_was_looked_up(contents, tmp_path):
    one = database(tmp_path / "PyPI.zip", record("X-1", affected("PyPI", "someone-else", [("introduced", "0")])))
    two = database(tmp_path / "Debian.zip", record("D-1", affected("Debian:12", "other", [("introduced", "0")])))
    half = known_vulnerabilities(contents, (one,), "image", Silent())
    assert half.verdict is Verdict.UNKNOWN
    assert "no record of Debian" in half.summary
    whole = known_vulnerabilities(contents, (one, two), "image", Silent())
    assert whole.verdict is Verdict.YES
    assert "1 conda packages were not looked up" in whole.summary


def test_records_that_cannot_be_read_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("envbuilder.publish.vulnerabilities.records._LONGEST", 200)
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as made:
        made.writestr("a.json", b'{"id": "alpha"')
        made.writestr("b.json", b"[" * 150 + b'"alpha"')
        made.writestr("../../c.json", b'{"x": "' + b"a" * 500 + b'"}')
        made.writestr("d.json", b'[{"name": "alpha"}, 3]')
        made.writestr("notes.txt", b"alpha")
    found = read_databases([tmp_path / "x.zip"], ["alpha"], Silent())
    assert (found.records, found.unreadable) == ([], 5)
    assert not (tmp_path.parent / "c.json").exists()


def test_a_zip_that_unpacks_to_more_than_any_database_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("envbuilder.publish.vulnerabilities.records._MOST", 1 << 20)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for number in range(4):
            made.writestr(f"{number}.json", bytes(500_000))
    with pytest.raises(InputError, match="more than any database"):
        read_databases([tmp_path / "bomb.zip"], ["alpha"], Silent())


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 damaged", b"text", b"\x00" * 100])
def test_what_is_no_database_is_refused(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError, match="no database"):
        read_databases([tmp_path / "x"], ["alpha"], Silent())
    with pytest.raises(InputError, match="no database"):
        read_databases([tmp_path / "missing"], ["alpha"], Silent())


def test_the_command_answers_with_its_exit_code(tmp_path, capsys):
    image = archive(tmp_path / "image.tar", files() | {"opt/conda/conda-meta/zlib-1.3-h1_0.json": b"{}"})
    (tmp_path / "db.json").write_text(json.dumps([record("X-1", affected("PyPI", "beta", versions=["2.0+cu118"]))]))
    assert run(["sbom", image, "--vulnerabilities", str(tmp_path / "db.json"), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["findings"][0]["rule"] == "X-1"
    assert run(["sbom", image, "--vulnerabilities", str(tmp_path / "none.zip")]) == 2
    assert run(["sbom", image, "--vulnerabilities", str(tmp_path / "db.json"), "--check"]) == 2
