"""What is in an image, out of its own databases; the two documents against the schemas of their libraries."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from envbuilder.cli import run
from envbuilder.errors import InputError, IntegrityError
from envbuilder.publish.sbom.checking import check
from envbuilder.publish.sbom.cyclonedx import cyclonedx_text
from envbuilder.publish.sbom.inventory import contents_of
from envbuilder.publish.sbom.licences import debian_licence, python_licences
from envbuilder.publish.sbom.model import Kind
from envbuilder.publish.sbom.spdx import spdx_text
from envbuilder.report.model import Verdict
from envbuilder.report.progress import Silent
from tests.unit.publish.stand_in_image import LOCK, SITE, archive, distribution, files, lock


class Golden(SingleFileSnapshotExtension):
    _write_mode = WriteMode.TEXT
    file_extension = "json"


@pytest.fixture
def image(tmp_path):
    return archive(tmp_path / "image.tar", files())


@pytest.fixture
def contents(image):
    return contents_of(image, Silent(), lock())


def named(contents, name):
    return next(c for c in contents.components if c.name == name)


def test_the_documents_are_the_golden_ones(contents, snapshot):
    assert cyclonedx_text(contents) == snapshot(extension_class=Golden, name="cyclonedx")
    assert spdx_text(contents) == snapshot(extension_class=Golden, name="spdx")


def test_both_documents_are_valid_by_the_schemas_of_their_libraries(contents, tmp_path):
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator
    from spdx_tools.spdx.parser.json.json_parser import parse_from_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    text = cyclonedx_text(contents)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    broken = text.replace('"specVersion": "1.6"', '"specVersion": "1.6", "unheard": 1')
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(broken) is not None
    (tmp_path / "x.json").write_text(spdx_text(contents))
    document = parse_from_file(str(tmp_path / "x.json"))
    assert validate_full_spdx_document(document) == []
    assert len(document.packages) == len(contents.components) + 1


def test_every_kind_of_package_has_its_url_and_the_digest_of_the_lock(contents):
    found = {c.name: (c.kind, c.purl, c.sha256[:1]) for c in contents.components}
    assert found["libdemo1"] == (Kind.DEBIAN, "pkg:deb/debian/libdemo1@1:1.0-1%2Bb1?arch=amd64&distro=debian-12", "a")
    assert found["alpha"] == (Kind.PYTHON, "pkg:pypi/alpha@1.0.0", "0")
    assert found["beta"] == (Kind.PYTHON, "pkg:pypi/beta@2.0%2Bcu118", "1")
    conda = "pkg:conda/zlib@1.3?build=h1_0&channel=conda-forge&subdir=linux-64"
    assert found["zlib"] == (Kind.CONDA, conda, "d")
    assert found["apex"] == (Kind.SOURCE, f"pkg:github/nvidia/apex@{'e' * 40}", "")
    assert found["nvidia/cuda"][0] is Kind.IMAGE
    assert "gone" not in found
    assert "mambaorg/micromamba" not in found, "what only installs is not in the image"
    assert found["envbuilder"][1] == "pkg:generic/envbuilder@0.9.9"
    assert named(contents, "libdemo1").source == ("demo", "1:1.0-1")


def test_what_a_wheel_carries_inside_it_is_named_and_is_not_missed_in_the_lock(contents):
    assert named(contents, "carried").properties["within"] == "pkg:pypi/big@5.0"
    assert contents.unlocked == ()


def test_licences_are_those_the_packages_name_and_nothing_is_guessed(contents):
    assert named(contents, "libdemo1").licences == ("GPL-2.0-or-later OR Artistic-1.0-Perl", "MIT", "ad-hoc")
    assert named(contents, "tool").licences == named(contents, "libdemo1").licences, "its folder is a link"
    assert named(contents, "alpha").licences == ("MIT OR Apache-2.0",)
    assert named(contents, "beta").licences == ("Apache-2.0",)
    assert named(contents, "gamma").licences == ("BSD",)
    assert named(contents, "bare").licences == ()
    document = json.loads(cyclonedx_text(contents))
    bare = next(c for c in document["components"] if c["name"] == "bare")
    assert bare["licenses"] == [{"license": {"name": "NOASSERTION"}}]


def test_files_belong_to_packages_through_links_and_diversions(contents):
    assert named(contents, "tool").files == 3, "/bin is a link (the third), and /bin/sh is its own"
    assert named(contents, "libdemo1").files == 2, "its /bin/sh was diverted to /bin/sh.distrib"
    assert "usr/bin/sh.distrib" not in contents.strangers
    assert "opt/venv/bin/alpha" not in contents.strangers
    assert "etc/motd" in contents.strangers


def test_the_check_passes_and_counts(contents, image):
    report = check(contents, cyclonedx_text(contents), image)
    assert report.verdict is Verdict.YES
    assert report.findings == ()
    assert report.facts["owners"] == 10
    assert "etc/motd" in report.facts["files_without_package"]
    assert check(contents, spdx_text(contents), image).verdict is Verdict.YES


def test_a_package_that_owns_files_and_is_not_in_the_document_is_found(tmp_path):
    content = files()
    content["var/lib/dpkg/info/hidden.list"] = b"/usr/lib/hidden\n"
    content["usr/lib/hidden"] = b"x"
    del content[f"{SITE}/bare-4.0.dist-info/METADATA"]
    contents = contents_of(archive(tmp_path / "image.tar", content), Silent(), lock())
    report = check(contents, cyclonedx_text(contents), "image.tar")
    assert report.verdict is Verdict.NO
    assert [f.title.split()[0] for f in report.findings] == ["hidden", "bare"]
    assert report.facts["missing"] == [{"kind": "deb", "name": "hidden"}, {"kind": "pypi", "name": "bare"}]


def test_what_the_lock_does_not_name_is_found(tmp_path):
    content = {**files(), **distribution("miner", "6.6", ["miner.py"])}
    contents = contents_of(archive(tmp_path / "image.tar", content), Silent(), lock())
    report = check(contents, cyclonedx_text(contents), "image.tar")
    assert report.verdict is Verdict.NO
    assert report.findings[0].title == "miner 6.6 is in the image and not in its lock"


def test_without_its_lock_an_image_has_a_document_without_digests(image):
    contents = contents_of(image, Silent())
    assert not contents.lock_read
    assert not any(c.sha256 for c in contents.components)
    assert contents.lock == LOCK
    assert "not at hand" in check(contents, cyclonedx_text(contents), image).summary


def test_a_document_is_the_same_however_the_image_is_read_and_when(image, contents, tmp_path):
    """Another order of files, as another layer would give."""
    found = contents_of(archive(tmp_path / "other.tar", dict(reversed(files().items()))), Silent(), lock())
    assert found.digest != contents.digest
    same = replace(found, digest=contents.digest)
    assert cyclonedx_text(same) == cyclonedx_text(contents)
    assert spdx_text(same) == spdx_text(contents)


def test_an_archive_with_another_byte_has_no_bill_of_materials(image):
    path = Path(image)
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"layer.tar") + 512 + 600] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(IntegrityError, match="not what its configuration says"):
        contents_of(image, Silent(), lock())


@pytest.mark.parametrize(
    "damage",
    [
        {"opt/envbuilder/stack.json": b"["},
        {"opt/envbuilder/stack.json": b'{"stack": 3}'},
        {"opt/conda/conda-meta/zlib-1.3-h1_0.json": b"[" * 100_000},
    ],
)
def test_a_damaged_database_is_said(tmp_path, damage):
    contents = contents_of(archive(tmp_path / "image.tar", files() | damage), Silent(), lock())
    assert contents.unseen[0].startswith(next(iter(damage)))
    assert check(contents, cyclonedx_text(contents), "image.tar").verdict is not Verdict.YES


@pytest.mark.parametrize(
    "hostile",
    [
        {"var/lib/dpkg/status": b"\xff\xfe\x00" * 1000},
        {"var/lib/dpkg/diversions": b"\n\n\n/x"},
        {"bin": "bin"},
        {"bin": "../../../../etc"},
        {"usr/share/doc/libdemo1/copyright": b"Format: x\n\nFiles: *\nLicense:\n" + b"(" * 10_000},
        {f"{SITE}/x-1.dist-info/METADATA": b"Name: ../../x\nVersion: \x00\nLicense-Expression: " + b"(" * 5_000},
        {f"{SITE}/x-1.dist-info/METADATA": b"", f"{SITE}/x-1.dist-info/RECORD": b'"../../../../../../etc/motd,,\n'},
    ],
)
def test_hostile_databases_do_no_harm(tmp_path, hostile):
    contents = contents_of(archive(tmp_path / "image.tar", files() | hostile), Silent(), lock())
    json.loads(cyclonedx_text(contents))


def test_databases_larger_than_any_real_one_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("envbuilder.publish.sbom.reading._MOST", 1000)
    with pytest.raises(InputError, match="larger than any real one"):
        contents_of(archive(tmp_path / "image.tar", files()), Silent())


@pytest.mark.parametrize(
    ("synopsis", "wanted"),
    [
        ("GPL-2+", "GPL-2.0-or-later"),
        ("GPL-3.0", "GPL-3.0-only"),
        ("LGPL-2.1+ or BSD-3-clause", "LGPL-2.1-or-later OR BSD-3-Clause"),
        ("GPL-1+ or Artistic, and Expat", "(GPL-1.0-or-later OR Artistic-1.0-Perl) AND MIT"),
        ("GPL-3+ with Bison exception", "GPL-3+ with Bison exception"),
        ("GFDL-NIV-1.3+", "GFDL-1.3-no-invariants-or-later"),
        ("public-domain", "public-domain"),
        ("LGPL", "LGPL"),
        ("BSD-3-clause and/or GPL-3+", "BSD-3-Clause OR GPL-3.0-or-later"),
    ],
)
def test_short_names_of_debian(synopsis, wanted):
    assert debian_licence(synopsis) == wanted


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        (("MIT", "", []), ("MIT",)),
        (("LicenseRef-Own", "", []), ("LicenseRef-Own",)),
        (("", "Apache 2.0", []), ("Apache-2.0",)),
        (("", "x" * 2000, ["License :: OSI Approved :: MIT License"]), ("MIT",)),
        (("", "BSD", ["License :: OSI Approved :: BSD License"]), ("BSD",)),
        (("", "", ["License :: Other/Proprietary License"]), ("Other/Proprietary License",)),
        (("", "", ["License :: OSI Approved", "Topic :: Internet"]), ()),
    ],
)
def test_licence_fields_of_python(fields, wanted):
    assert python_licences(*fields) == wanted


def test_the_command_writes_a_document_and_reports(image, tmp_path, capsys):
    assert run(["sbom", image, "--format", "spdx", "--out", str(tmp_path / "x.json")]) == 0
    assert json.loads((tmp_path / "x.json").read_text())["spdxVersion"] == "SPDX-2.3"
    assert run(["sbom", image]) == 0
    assert json.loads(capsys.readouterr().out)["bomFormat"] == "CycloneDX"
    assert run(["sbom", image, "--check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["facts"]["owners"] == 10
    assert run(["sbom", image, "--json"]) == 2


def test_what_is_no_image_is_said(tmp_path, capsys, monkeypatch):
    # No store has an image, whatever this host has.
    monkeypatch.setattr("envbuilder.publish.sbom.reading.read_image", lambda *_: None)
    assert run(["sbom", "no-such-image"]) == 2
    (tmp_path / "text").write_text("x")
    assert run(["sbom", str(tmp_path / "text")]) == 2
    assert run(["sbom", "p40"]) == 2
    said = capsys.readouterr().err
    assert "there is no such image" in said
    assert "envbuilder build p40" in said
    assert "this file is no image archive" in said
