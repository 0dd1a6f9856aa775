"""Logs of any encoding, size and shape: faults are found across chunk edges, and nothing crashes."""

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envbuilder.diagnose import logtext
from envbuilder.diagnose.explain import explain_streams, explain_text
from envbuilder.errors import InputError
from envbuilder.report import Report, Verdict

FAULT = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183\n"
RULE = "nvml-driver-library-mismatch"


def explain(data: bytes) -> Report:
    return explain_streams([io.BytesIO(data)], subject="log")


def named(report: Report) -> list[str]:
    return [finding.rule for finding in report.findings]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "gbk", "latin-1"])
def test_encodings(encoding: str) -> None:
    before = "" if encoding == "latin-1" else "驱动检查：\n"
    assert named(explain((before + FAULT).encode(encoding))) == [RULE]


def test_chinese_of_gbk_stays_readable() -> None:
    report = explain("错误：CUDA out of memory 显存不足\n".encode("gbk"))
    assert "显存不足" in report.findings[0].evidence[0]


def test_gzip_is_unpacked() -> None:
    assert named(explain(gzip.compress(FAULT.encode()))) == [RULE]


def test_damaged_gzip_is_told() -> None:
    with pytest.raises(InputError, match="damaged"):
        explain(b"\x1f\x8b\x08\x00" + b"\xff" * 50)


@pytest.mark.parametrize("data", [b"\x7fELF\x02\x01\x01" + bytes(200), b"PK\x03\x04rest", bytes(range(32)) * 40])
def test_a_binary_file_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="binary"):
        explain(data)


def test_nuls_in_a_kernel_log_are_no_binary_file() -> None:
    data = b"kern.log line\n" * 200 + bytes(100) + FAULT.encode()
    assert named(explain(data)) == [RULE]


@pytest.mark.parametrize("data", [b"", b"\n\n", b" \r\n"])
def test_an_empty_log_is_not_enough(data: bytes) -> None:
    report = explain(data)
    assert report.verdict is Verdict.UNKNOWN
    assert "empty" in report.summary


def test_windows_line_ends_and_colours() -> None:
    text = "\x1b[31mFailed to initialize NVML: \x1b[0mDriver/library version mismatch\r\n"
    assert named(explain(text.encode())) == [RULE]
    assert "\x1b" not in "".join(explain(text.encode()).findings[0].evidence)


def test_a_last_line_without_newline_counts() -> None:
    report = explain(b"a\nb\n" + FAULT.strip().encode())
    assert report.facts["lines"] == 4
    assert report.findings[0].place.line == 3


@pytest.mark.parametrize("offset", range(0, 130, 7))
def test_a_fault_across_a_chunk_edge_is_found_once_with_its_line(offset: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logtext, "CHUNK", 512)
    filler = "x" * offset + "\n" + "step ok, nothing to see\n" * 30
    lines = filler.count("\n")
    text = filler + FAULT + "after it\n" * 30
    report = explain(text.encode())
    assert named(report) == [RULE]
    assert report.findings[0].place.line == lines + 1
    assert report.facts["lines"] == text.count("\n")


def test_one_endless_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logtext, "CHUNK", 1 << 14)
    data = b"\r 50% |#####     |" * 20_000 + FAULT.encode() + b"\r 60% |######    |" * 20_000
    assert named(explain(data)) == [RULE]


def test_an_error_at_the_end_is_found_however_often_its_words_came_before() -> None:
    noise = "copying amp_C.cpython-310-x86_64-linux-gnu.so no kernel imag to wheel\n" * 3000
    end = (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
        "frame #1: f() (in /opt/env/amp_C.cpython-310-x86_64-linux-gnu.so)\n"
    )
    assert named(explain((noise + end).encode())) == ["extension-lacks-card"]


def test_wrapped_kernel_messages_are_read_over_their_prefix() -> None:
    stamp = "Nov 30 08:00:00 host kernel: [    5.000001] NVRM: "
    text = (
        f"{stamp}The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1b38)\n"
        f"{stamp}installed in this system is not supported by open\n"
        f"{stamp}nvidia.ko because it does not include the required GPU\n{stamp}System Processor (GSP).\n"
    )
    assert named(explain(text.encode())) == ["open-modules-need-gsp"]


@given(st.binary(max_size=400))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        report = explain(data)
    except InputError:
        return
    assert report.verdict in Verdict


@given(st.lists(st.text(max_size=60), max_size=8))
@settings(max_examples=100, deadline=None)
def test_any_lines_are_explained(lines: list[str]) -> None:
    assert explain_text(lines).verdict in Verdict


def test_several_logs_are_read_as_one(tmp_path: Path) -> None:
    streams = [io.BytesIO(b"No devices were found\n"), io.BytesIO(b"pci 0000:01:00.0: BAR 1: can't assign; no space\n")]
    report = explain_streams(streams, subject="two")
    assert named(report)[0] == "bar-above-4g"
