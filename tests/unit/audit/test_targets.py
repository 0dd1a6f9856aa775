"""Wheels, environments, the summary verdict and what stands beside the kernels."""

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from envbuilder.audit.arch import Arch
from envbuilder.audit.audit import audit
from envbuilder.audit.cards import find_card
from envbuilder.audit.target import collect
from envbuilder.cli.audit import command
from envbuilder.errors import InputError
from envbuilder.report.model import Report, Severity, Verdict

DATA = Path(__file__).parents[2] / "data" / "fatbin"
P40 = "p40"


def make_site(root: Path, packages: dict[str, dict[str, str | bytes]]) -> Path:
    """An environment of stand-ins: package -> path -> fixture name, or bytes."""
    for package, files in packages.items():
        lines = []
        for path, content in files.items():
            data = content if isinstance(content, bytes) else (DATA / content).read_bytes()
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            lines.append(f"{path},sha256={hash(data) & 0xFFFFFFFF:x},{len(data)}")
        info = root / f"{package}.dist-info"
        info.mkdir(parents=True)
        (info / "RECORD").write_text("\n".join(lines) + "\n")
    return root


def make_wheel(path: Path, files: dict[str, str], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, fixture in files.items():
            archive.writestr(name, (DATA / fixture).read_bytes())
    return path


def report_on(target: Path, card: str = P40) -> Report:
    return audit([str(target)], find_card(card))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_a_wheel_is_read_without_unpacking(tmp_path: Path, method: int) -> None:
    files = {"pkg/good.so": "sm61.so", "pkg/bad.so": "sm70.so", "pkg/text.py": "COMMANDS.txt"}
    wheel = make_wheel(tmp_path / "My_Pkg-1.2-py3-none-any.whl", files, method)
    report = report_on(wheel)
    assert report.verdict is Verdict.NO
    (finding,) = report.findings
    assert "my-pkg 1.2 cannot run on Tesla P40 (sm_61)" in finding.title
    assert any("bad.so" in line for line in finding.evidence)
    assert not any("good.so" in line for line in finding.evidence)
    assert list(tmp_path.iterdir()) == [wheel]


def test_a_wheel_whose_directory_lies_is_doubted(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "p-1-py3-none-any.whl", {"p/a.so": "sm61.so"})
    data = bytearray(wheel.read_bytes())
    data[data.rindex(b"PK\x01\x02") + 42] ^= 0xFF  # the offset of the member
    wheel.write_bytes(data)
    assert report_on(wheel).verdict is Verdict.UNKNOWN


def test_a_file_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "p-1-py3-none-any.whl", {"p/a.so": "sm61.so"})
    wheel.write_bytes(wheel.read_bytes().replace(b"PK\x01\x02", b"PK\x01\x03"))
    with pytest.raises(InputError, match="no wheel"):
        report_on(wheel)


def test_a_wheel_or_library_that_breaks_off_is_no_yes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "p-1-py3-none-any.whl", {"p/a.so": "sm61.so"})
    wheel.write_bytes(wheel.read_bytes()[:3000])
    with pytest.raises(InputError, match="no wheel"):
        report_on(wheel)
    library = tmp_path / "a.so"
    library.write_bytes((DATA / "sm61.so").read_bytes()[:8000])
    assert report_on(library).verdict is Verdict.UNKNOWN


def test_one_summary_names_the_guilty_files(tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        {
            "torch-2.6.0": {"torch/lib/libtorch_cuda.so": "sm60.so"},
            "vllm-0.8.5": {"vllm/_C.abi3.so": "sm70.so", "vllm/_flashmla_C.abi3.so": "sm70.so"},
            "nvidia_cusparselt_cu12-0.6.2": {"cusparselt/lib/libcusparseLt.so.0": "sm70.so"},
            "numpy-1.0": {"numpy/core.so": "host_only.so"},
        },
    )
    report = report_on(site)
    assert report.verdict is Verdict.NO
    assert report.summary == ("it cannot run on Tesla P40 (sm_61): vllm 0.8.5 (_C.abi3.so, _flashmla_C.abi3.so)")
    errors = [f for f in report.findings if f.severity is Severity.ERROR]
    assert [f.title for f in errors] == ["vllm 0.8.5 cannot run on Tesla P40 (sm_61)"]
    assert "transformers" in errors[0].cure


def test_optional_back_ends_raise_no_alarm(tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        {
            "torch-2.6.0": {"torch/lib/libtorch_cuda.so": "sm60.so"},
            "xformers-0.0.29": {"xformers/_C.so": "sm60.so", "xformers/_C_flashattention3.so": "sm70.so"},
            "nvidia_cusparselt_cu12-0.6.2": {"cusparselt/lib/libcusparseLt.so.0": "sm70.so"},
        },
    )
    report = report_on(site)
    assert report.verdict is Verdict.YES
    assert not [f for f in report.findings if f.severity is Severity.ERROR]


@pytest.mark.parametrize(
    ("files", "answer", "verdict"),
    [
        ({"libcudnn_ops.so.9": "mixed_tu.so", "libcudnn_engines_precompiled.so.9": "sm70.so"}, "partly by design", 0),
        ({"libcudnn_ops.so.9": "sm70.so", "libcudnn_engines_precompiled.so.9": "mixed_tu.so"}, "no", 1),
        ({"libcublas.so.12": "mixed_tu.so"}, "partly by design", 0),
        ({"libunknown.so": "mixed_tu.so"}, "no", 1),
    ],
)
def test_a_package_has_rules_of_its_own(
    tmp_path: Path, files: dict[str, str | bytes], answer: str, verdict: int
) -> None:
    site = make_site(tmp_path, {"pkg-1": {f"nvidia/x/lib/{k}": v for k, v in files.items()}})
    report = report_on(site)
    assert report.facts["targets"][0]["packages"][0]["answer"] == answer
    assert report.verdict.exit_code == verdict


@pytest.mark.parametrize(("cuda", "verdict"), [("12.4", Verdict.YES), ("12.8", Verdict.NO), ("", Verdict.YES)])
def test_of_variants_the_one_that_torch_loads_decides(tmp_path: Path, cuda: str, verdict: Verdict) -> None:
    variants: dict[str, str | bytes] = {
        "bitsandbytes/libbitsandbytes_cuda124.so": "sm60.so",
        "bitsandbytes/libbitsandbytes_cuda128.so": "sm70.so",
    }
    packages = {"bitsandbytes-0.50.2": variants}
    if cuda:
        packages["torch-2.6.0"] = {"torch/version.py": f"cuda: Optional[str] = '{cuda}'\n".encode()}
    report = report_on(make_site(tmp_path, packages))
    assert report.verdict is verdict


def test_two_packages_that_own_a_file_with_different_bytes(tmp_path: Path) -> None:
    path = "nvidia/cudnn/lib/libcudnn_ops.so.9"
    site = make_site(tmp_path, {"nvidia_cudnn_cu11-9.1": {path: "sm60.so"}, "nvidia_cudnn_cu12-9.1": {path: "sm61.so"}})
    report = report_on(site)
    (finding,) = [f for f in report.findings if f.rule == "two-packages-own-a-file"]
    assert "nvidia-cudnn-cu11 9.1 and nvidia-cudnn-cu12 9.1 both own 1 file" in finding.title
    assert report.verdict is Verdict.NO


def test_one_library_in_two_majors(tmp_path: Path) -> None:
    site = make_site(
        tmp_path,
        {"a-1": {"a/libcudnn.so.8": "host_only.so"}, "b-1": {"b/libcudnn.so.9": "host_only.so"}},
    )
    (finding,) = [f for f in report_on(site).findings if f.rule == "library-in-two-majors"]
    assert "libcudnn.so.8, libcudnn.so.9" in finding.title


def test_what_the_system_must_bring_is_said(tmp_path: Path) -> None:
    site = make_site(tmp_path, {"a-1": {"a/a.so": "sm61.so"}})
    (finding,) = [f for f in report_on(site).findings if f.rule == "library-of-the-base"]
    assert "libcudart.so.11.0" in finding.title
    assert finding.severity is Severity.ADVICE


def test_without_a_card_every_known_card_is_judged() -> None:
    report = audit([str(DATA / "sm60_ptx60.so")], None)
    rows = {row[0]: row[2] for row in report.tables[0].rows}
    assert rows["sm_52"] == "no"
    assert rows["sm_61"] == "yes"
    assert rows["sm_120"] == "yes by JIT"
    assert report.verdict is Verdict.YES


@pytest.mark.parametrize(
    ("name", "code"), [("sm60.so", 0), ("sm70.so", 1), ("lto61.o", 3), ("host_only.so", 0), ("mixed_tu.so", 1)]
)
def test_exit_codes_json_and_junit(tmp_path: Path, name: str, code: int) -> None:
    junit = tmp_path / "out.xml"
    done = CliRunner().invoke(
        command, [str(DATA / name), "--gpu", P40, "--json", "--junit", str(junit)], standalone_mode=False
    )
    assert done.return_value == code
    data = json.loads(done.stdout)
    assert data["command"] == "audit"
    assert data["facts"]["card"]["sm"] == "sm_61"
    assert junit.read_text().startswith("<testsuites")


def test_a_card_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="no card is known"):
        find_card("p4000")
    with pytest.raises(InputError, match="names code"):
        find_card("sm_90a")


def test_a_file_that_cannot_be_read_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.so").write_bytes((DATA / "sm61.so").read_bytes())

    def denied(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("envbuilder.audit.sources.os.open", denied)
    collection = collect(str(tmp_path), [Arch(6, 1)])
    assert collection.binaries[0].doubts == ["it cannot be read: Permission denied"]


def test_where_there_is_nothing_to_judge_it_is_not_a_yes(tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    text.write_text("no binary at all\n")
    for target, why in ((text, "it is no library"), (tmp_path, "no installed package lies in it")):
        for card in (find_card(P40), None):
            report = audit([str(target)], card)
            assert report.verdict is Verdict.UNKNOWN
            assert report.summary.startswith(f"nothing to judge: {target}: ")
            assert why in report.summary
    beside = audit([str(text), str(DATA / "sm60.so")], find_card(P40))
    assert beside.verdict is Verdict.UNKNOWN
    assert f"nothing to judge: {text}" in beside.summary


def test_pure_python_runs_on_any_card(tmp_path: Path) -> None:
    pure = make_wheel(tmp_path / "pure-1-py3-none-any.whl", {})
    site = make_site(tmp_path / "site", {"pure-1": {"pure.py": b"x = 1\n"}})
    for target in (pure, site, DATA / "host_only.so"):
        report = report_on(target)
        assert report.verdict is Verdict.YES
        assert "there is no device code in it" in report.summary
