"""What an audit costs, beside cuobjdump and beside reading alone, in one run: ``make bench``.

Installs torch 2.6.0 and cuobjdump into build/bench (uv's cache makes that cheap the second time). Every figure is the
best of several warm runs on this machine; the ratios are what counts.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import uv

from envbuilder.audit.arch import Arch
from envbuilder.audit.binary import read_binary
from envbuilder.audit.sources import FileSource

ROOT = Path("build/bench")
PACKAGES = ("torch==2.6.0", "nvidia-cuda-cuobjdump")
CARD = [Arch(6, 1)]
TWO_GB = ("torch", "nvidia/cublas")


def prepare() -> tuple[Path, Path]:
    """(site-packages with torch 2.6.0, cuobjdump)."""
    python = ROOT / "bin" / "python"
    if not python.exists():
        subprocess.run([uv.find_uv_bin(), "venv", "--quiet", "--python", "3.11", str(ROOT)], check=True)
    install = [uv.find_uv_bin(), "pip", "install", "--quiet", "--python", str(python)]
    subprocess.run([*install, *PACKAGES], check=True)
    site = next(ROOT.glob("lib/python3*/site-packages"))
    cuobjdump = next(site.glob("nvidia/**/bin/cuobjdump"))
    cuobjdump.chmod(0o755)
    return site, cuobjdump


def best(work: Callable[[], object], times: int = 5) -> float:
    """The shortest of several runs, in seconds."""
    found = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return min(found)


class Recorded(FileSource):
    """Remembers what was read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: list[tuple[int, int]] = []

    def read(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return super().read(offset, length)


def scan(path: Path) -> None:
    with FileSource(path) as source:
        read_binary(path.name, source, CARD)


def cuobjdump_lists(program: Path, library: Path) -> float:
    return best(lambda: subprocess.run([program, "-lelf", library], stdout=subprocess.DEVNULL, check=True), 3)


def peak_mib(arguments: list[str]) -> float:
    """Peak resident memory of a command, in MiB, as its own child says it."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return float(done.stdout)


def row(what: str, seconds: float, beside: str = "") -> None:
    print(f"{what:<62} {seconds * 1000:9.1f} ms  {beside}")


def main() -> None:
    site, cuobjdump = prepare()
    library = site / "torch" / "lib" / "libtorch_cuda.so"
    envbuilder = [sys.executable, "-m", "envbuilder", "audit", "--gpu", "sm_61"]
    version = subprocess.run([cuobjdump, "--version"], capture_output=True, text=True, check=True).stdout.split(
        "release "
    )[1]
    print(
        f"libtorch_cuda.so of torch 2.6.0, {library.stat().st_size / 1e6:.0f} MB; cuobjdump {version.split(',')[0]}\n"
    )

    scan(library)
    audited = best(lambda: scan(library))
    listed = cuobjdump_lists(cuobjdump, library)
    with Recorded(library) as source:
        read_binary(library.name, source, CARD)
        reads = source.reads
    with FileSource(library) as plain:
        read_only = best(lambda: [plain.read(*part) for part in reads])
    command = best(lambda: subprocess.run([*envbuilder, str(library)], capture_output=True, check=True), 3)
    row("cuobjdump -lelf", listed)
    row("audit, in this process", audited, f"{listed / audited:.0f} times faster")
    row("envbuilder audit, Python's start included", command, f"{listed / command:.0f} times faster")
    total = sum(min(length, library.stat().st_size - offset) for offset, length in reads)
    row(
        f"reading the same {total / 1e6:.0f} MB and nothing else",
        read_only,
        f"audit takes {audited / read_only:.1f} times that",
    )

    folders = [site / part for part in TWO_GB]
    libraries = [p for f in folders for p in f.rglob("*.so*") if p.is_file()]
    size = sum(p.stat().st_size for p in libraries)
    several = best(lambda: [scan(path) for path in libraries], 3)
    row(f"{len(libraries)} libraries of torch and cuBLAS, {size / 1e9:.2f} GB", several)
    everything = [p for p in site.rglob("*.so*") if p.is_file()]
    size = sum(p.stat().st_size for p in everything)
    row(
        f"all {len(everything)} libraries of the environment, {size / 1e9:.2f} GB",
        best(lambda: [scan(p) for p in everything], 3),
    )

    print()
    for name, arguments in (
        ("envbuilder audit libtorch_cuda.so", [*envbuilder, str(library)]),
        ("the scan alone", [sys.executable, __file__, "--scan", str(library)]),
        ("cuobjdump", [str(cuobjdump), "-lelf", str(library)]),
    ):
        print(f"peak memory, {name:<49} {peak_mib(arguments):9.0f} MiB")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--scan"]:
        scan(Path(sys.argv[2]))
    else:
        main()
