"""How fast and in how much memory explain reads a log, beside plain reading and beside a search pattern by pattern.

Run: python benchmarks/bench_explain.py [MEGABYTES]   (100 by default; 500 for the memory of a very large one)
"""

from __future__ import annotations

import io
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from envbuilder.diagnose.engine import patterns_of
from envbuilder.diagnose.explain import explain_streams, explain_text
from envbuilder.diagnose.rulebook import rules

TRAINING = (
    "(WorkerDict pid=4407) step:{n} - critic/vf_loss:0.39 - actor/pg_loss:-0.008 - actor/grad_norm:1.21 - "
    "timing_s/gen:39.8 - timing_s/step:42.6 - perf/throughput:11.2\n"
)
BUILD = (
    "#14 {n}.4 [7/41] /usr/local/cuda/bin/nvcc -gencode=arch=compute_61,code=sm_61 -c csrc/multi_tensor_lamb.cu "
    "-I/opt/venv/lib/python3.10/site-packages/torch/include -D_GLIBCXX_USE_CXX11_ABI=0 -std=c++17\n"
)
REPEATED = "RuntimeError: CUDA error: no kernel image is available for execution on the device ({n})\n"
FAULT = (
    "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 81920, Hardware limit: 49152.\n"
)


def make(path: Path, line: str, megabytes: int) -> None:
    """A log of ``megabytes``: the line again and again, one fault in the middle."""
    block = "".join(line.format(n=n) for n in range(5000)).encode()
    with path.open("wb") as stream:
        written = 0
        while written < megabytes * 1_000_000:
            stream.write(block)
            written += len(block)
            if written - len(block) < megabytes * 500_000 <= written:
                stream.write(FAULT.encode())


def timed(work: Callable[[], object]) -> float:
    """Seconds that ``work`` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def read(path: Path) -> int:
    """Only read the file and count its lines."""
    with path.open("rb") as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(1 << 22), b""))


def explain(path: Path) -> None:
    """Explain the file; the fault in it must be found."""
    with path.open("rb") as stream:
        report = explain_streams([stream], subject=path.name)
    assert any("triton" in f.rule or "kernel" in f.rule for f in report.findings), report.summary


def line_by_line(path: Path, share: int) -> None:
    """Every pattern of every rule against every line, on one part in ``share`` of the file."""
    patterns = [re.compile(p, re.IGNORECASE) for p in patterns_of(r for r in rules().values() if r.kind == "log")]
    with path.open("rb") as stream:
        text = io.StringIO(stream.read(path.stat().st_size // share).decode())
    for line in text:
        for pattern in patterns:
            pattern.search(line)


def main() -> None:
    """Print one line a log."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    explain_text(["warm up"])
    print(f"{megabytes} MB each; seconds, MB/s, times the reading alone, times faster than line by line")
    with tempfile.TemporaryDirectory() as folder:
        for name, line in (("training", TRAINING), ("build", BUILD), ("one error repeated", REPEATED)):
            path = Path(folder) / "log"
            make(path, line, megabytes)
            alone, ours = timed(lambda path=path: read(path)), timed(lambda path=path: explain(path))
            share = 1000
            naive = timed(lambda path=path, share=share: line_by_line(path, share)) * share
            speed = f"{ours:6.2f} s {megabytes / ours:7.0f} MB/s"
            print(f"{name:20} {speed} {ours / alone:6.1f} x reading {naive / ours:9.0f} x")
    print(f"peak memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
