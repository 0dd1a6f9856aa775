"""``envbuilder data`` as a user runs it: seconds, MB/s and peak memory, on GSM8K's size and on two larger files.

    python -m benchmarks.bench_data [--mb 20 100]      # 5000 for a 5 GB file

The questions are made here, in GSM8K's format and of its lengths. Every figure is a whole cold process. Memory that
does not depend on the size shows as the ratio of the two peaks.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_NAMES = ("Weng", "Betty", "James", "Mark", "Albert", "Ken", "Alexis", "Tina", "Tobias", "Randy")
_THINGS = ("pages", "clips", "apples", "letters", "flowers", "coins", "tickets", "shells", "stamps", "eggs")
_ROWS = {"train": 7473, "test": 1319}  # GSM8K's two splits


def row(rng: random.Random) -> str:
    """One row: a question of about 240 characters and an answer of about 290, as GSM8K's are on average."""
    name, thing = rng.choice(_NAMES), rng.choice(_THINGS)
    a, b, c = (rng.randrange(2, 90) for _ in range(3))
    question = (
        f"{name} has {a} {thing} and buys {b} boxes with {c} {thing} each. On the way home half of the boxes are lost, "
        f"and a friend gives {name} {a} more {thing} to make up for it. How many {thing} does {name} have in the end?"
    )
    answer = (
        f"The boxes hold {b} * {c} = <<{b}*{c}={b * c}>>{b * c} {thing}.\nHalf of them are lost, so {b * c} / 2 = "
        f"<<{b * c}/2={b * c // 2}>>{b * c // 2} {thing} come home.\n{name} had {a} and was given {a}, which is "
        f"{a} + {a} = <<{a}+{a}={2 * a}>>{2 * a}.\nIn the end there are {b * c // 2} + {2 * a} = "
        f"<<{b * c // 2}+{2 * a}={b * c // 2 + 2 * a}>>{b * c // 2 + 2 * a:,} {thing}.\n#### {b * c // 2 + 2 * a:,}"
    )
    return json.dumps({"question": question, "answer": answer}) + "\n"


def write(path: Path, rows: int = 0, size: int = 0) -> None:
    """Write ``rows`` rows, or as many as make ``size`` bytes; a block of rows is repeated, which is quick."""
    rng = random.Random(0)
    block = [row(rng).encode() for _ in range(min(rows, 20_000) or 20_000)]
    whole = b"".join(block)
    with path.open("wb") as stream:
        if rows:
            stream.writelines(block[i % len(block)] for i in range(rows))
        while not rows and stream.tell() < size:
            stream.write(whole)


def convert(source: Path, out: Path) -> tuple[float, float, float]:
    """Run the command; (seconds by the clock, of a processor, peak memory in MiB)."""
    command = [sys.executable, "-m", "envbuilder", "data", "gsm8k", "--from", str(source), "--out", str(out)]
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"the command ended with {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Print a line a run, and the ratio of the peaks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mb", type=int, nargs="+", default=[20, 100], help="sizes of the larger files, in MB")
    parser.add_argument("--scratch", type=Path, help="folder for the files; they are removed")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.scratch) as name:
        scratch = Path(name)
        print(f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
        (scratch / "gsm8k").mkdir()
        for split, rows in _ROWS.items():
            write(scratch / "gsm8k" / f"{split}.jsonl", rows=rows)
        seconds, busy, peak = convert(scratch / "gsm8k", scratch / "out")
        rows = sum(_ROWS.values())
        print(f"GSM8K's format and size, {rows} rows: {seconds:.2f} s ({busy:.2f} s of a core), peak {peak:.0f} MiB")
        peaks = []
        for mb in args.mb:
            path = scratch / "large.jsonl"
            write(path, size=mb * 10**6)
            size = path.stat().st_size / 1e6
            seconds, busy, peak = convert(path, scratch / "out")
            peaks.append(peak)
            print(
                f"{size:.0f} MB: {seconds:.1f} s ({busy:.1f} s of a core), {size / seconds:.1f} MB/s, "
                f"peak {peak:.0f} MiB",
                flush=True,
            )
            path.unlink()
        print(f"peak, largest / smallest file: {peaks[-1] / peaks[0]:.2f}")


if __name__ == "__main__":
    main()
