"""A scanner of somebody else's, OWASP dep-scan, reads our bill of materials and finds in it what we find.

The two records are made for the test: real names and a real format, and ranges that hold whatever the lock has. The
scanner's database is filled with them alone and stands in for the one it would download.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest
import uv

from envbuilder.image.building import build_stack
from envbuilder.publish.sbom.cyclonedx import cyclonedx_text
from envbuilder.publish.sbom.inventory import contents_of
from envbuilder.publish.vulnerabilities.reporting import known_vulnerabilities
from envbuilder.report.progress import Silent

pytestmark = pytest.mark.xdist_group("small-stack")

ROOT = Path(__file__).parents[2]
RATED = {"severity": [{"type": "CVSS_V3", "score": "CVSS:3.1/AV:N/AC:L/PR:N/UI:N/S:U/C:N/I:N/A:H"}]}


def record(identifier, alias, name, events):
    ranges = [{"type": "ECOSYSTEM", "events": events}]
    package = {"name": name, "ecosystem": "PyPI", "purl": f"pkg:pypi/{name}"}
    return {
        "schema_version": "1.6.0", "id": identifier, "aliases": [alias], "published": "2024-04-11T21:32:40Z",
        "modified": "2024-04-12T00:00:00Z", "summary": "made for a test", "details": "made for a test",
        "references": [], "affected": [{"package": package, "ranges": ranges}], **RATED,
    }  # fmt: skip


RECORDS = [
    record("GHSA-aaaa-bbbb-cccc", "CVE-2024-0001", "idna", [{"introduced": "0"}, {"fixed": "99.7"}]),
    record("GHSA-dddd-eeee-ffff", "CVE-2024-0002", "pyyaml", [{"introduced": "0"}, {"fixed": "1.0"}]),
]


@pytest.fixture(scope="module")
def scanner(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scanner") / "venv"
    program = uv.find_uv_bin()
    subprocess.run([program, "venv", "--quiet", "--python", "3.11", folder], check=True)
    command = [program, "pip", "install", "--quiet", "--python", folder, "--require-hashes", "-r"]
    subprocess.run([*command, ROOT / "requirements" / "scanner.txt"], check=True)
    return folder / "bin"


def test_dep_scan_reads_it_and_finds_what_we_find(store, small, buildah, scanner, tmp_path):
    image = build_stack(*small, buildah, Silent()).image.reference
    contents = contents_of(image, Silent(), small[2])
    (tmp_path / "image.cdx.json").write_text(cyclonedx_text(contents))
    (tmp_path / "records.json").write_text(json.dumps(RECORDS))
    env = {**os.environ, "VDB_HOME": str(tmp_path / "vdb")}
    (tmp_path / "vdb").mkdir()
    fill = Path(__file__).with_name("scanner_database.py")
    subprocess.run([scanner / "python", fill, tmp_path / "records.json"], env=env, check=True)
    command = [scanner / "depscan", "--no-banner", "--reachability-analyzer", "off", "--vulnerability-analyzer"]
    arguments = ["VDRAnalyzer", "--bom", tmp_path / "image.cdx.json", "--reports-dir", tmp_path / "reports"]
    subprocess.run([*command, *arguments], env=env, check=True, capture_output=True, cwd=tmp_path)
    read = json.loads((tmp_path / "reports" / "image.vdr.json").read_text())
    assert {c["bom-ref"] for c in read["components"]} >= {c.purl for c in contents.components}
    theirs = {(v["id"], v["affects"][0]["ref"]) for v in read["vulnerabilities"]}
    ours = known_vulnerabilities(contents, (tmp_path / "records.json",), image, Silent()).facts["vulnerabilities"]
    assert theirs == {(found["ids"][0], found["packages"][0]) for found in ours}
    assert theirs == {("CVE-2024-0001", next(c.purl for c in contents.components if c.name == "idna"))}
