"""Coverage-guided fuzzing of everything that reads bytes of strangers: ``make fuzz``.

The first byte of an input chooses the parser, the rest is the file. A crash, a run of more than ten seconds or more
than 512 MiB of memory ends the run with the input written to the current folder.
"""

import contextlib
import io
import sys
import tarfile
import zipfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["envbuilder.audit"]):
    from envbuilder.audit.arch import Arch
    from envbuilder.audit.assemble import Assembly
    from envbuilder.audit.binary import read_binary, read_stream
    from envbuilder.audit.cards import Card
    from envbuilder.audit.judge import judge
    from envbuilder.audit.kernels import cubin_has_kernel, has_kernel
    from envbuilder.audit.layers import TarLayer, take_layers
    from envbuilder.audit.owners import Owners, torch_cuda
    from envbuilder.audit.remote import RemoteWheel, WheelList, collect_list
    from envbuilder.audit.sources import BytesSource
    from envbuilder.audit.wheel import inflate
from envbuilder.errors import EnvbuilderError
from envbuilder.report.progress import Silent

CARD = Card(Arch(6, 1), "fuzz")
CARDS = [Arch(6, 1), Arch(9, 0)]
STEP = 777


def file(data: bytes) -> None:
    judge(read_binary("lib.so", BytesSource(data), CARDS), CARD).sentence()


def stream(data: bytes) -> None:
    chunks = (data[i : i + STEP] for i in range(0, len(data), STEP))
    binary = read_stream("lib.so", chunks, len(data), enough=lambda images: len(images) > 3)
    judge(binary, CARD).sentence()


def both(data: bytes) -> None:
    """A stream finds what the file holds, whatever the bytes are: other answers are a fault, not a matter of taste."""
    whole = read_binary("x.bin", BytesSource(data), [])
    if whole.linkage is None and not data.startswith((b"!<arch>", b"\x7fELF")):
        passed = read_stream("x.bin", (data[i : i + STEP] for i in range(0, len(data), STEP)), len(data))
        assert passed.images() == whole.images()


def kernels(data: bytes) -> None:
    has_kernel(BytesSource(data), 0)
    cubin_has_kernel(BytesSource(data))


def layer(data: bytes) -> None:
    assembly = Assembly("image", "image", CARDS)
    take_layers([TarLayer("layer", io.BytesIO(data))], assembly, Silent())
    assembly.done()


class Local:
    near = False

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read(self, start: int, length: int) -> bytes:
        return self._data[start : start + length]

    def stream(self, start: int, length: int):  # type: ignore[no-untyped-def]
        yield self._data[start : start + length]


def wheel(data: bytes) -> None:
    name = "p-1-cp311-cp311-linux_x86_64.whl"
    collect_list("r.txt", WheelList((RemoteWheel("p", "1", name, lambda: Local(data)),)), CARDS)


def text(data: bytes) -> None:
    said = data.decode("utf-8", "replace")
    owners = Owners()
    owners.add_record("site", "p-1.dist-info", said)
    owners.add_conda("", said)
    torch_cuda(said)
    Arch.parse(said[:20])


def deflate(data: bytes) -> None:
    for _ in inflate(iter([data]), 1 << 22):
        pass


PARSERS = (file, stream, both, kernels, layer, wheel, text, deflate, file, stream)


def one(data: bytes) -> None:
    if data:
        with contextlib.suppress(EnvbuilderError, zipfile.BadZipFile, tarfile.TarError):
            PARSERS[data[0] % len(PARSERS)](data[1:])


def seeds(folder: Path, fixtures: Path) -> None:
    """Small beginnings: the fixtures' heads, a tar and a wheel around one, for each parser."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(fixtures.iterdir()):
        data = path.read_bytes()
        at = max(data.find(b"\x50\xed\x55\xba"), 0)
        for number in range(len(PARSERS)):
            (folder / f"{path.name}.{number}").write_bytes(bytes([number]) + data[:3000])
            (folder / f"{path.name}.fat.{number}").write_bytes(bytes([number]) + data[at : at + 3000])
            (folder / f"{path.name}.end.{number}").write_bytes(bytes([number]) + data[-3000:])
    packed, taken = io.BytesIO(), io.BytesIO()
    small = (fixtures / "k13_size.fatbin").read_bytes()[:2500]
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p/a.so", small)
    with tarfile.open(fileobj=taken, mode="w") as archive:
        member = tarfile.TarInfo("site/a.so")
        member.size = len(small)
        archive.addfile(member, io.BytesIO(small))
    (folder / "wheel").write_bytes(b"\x05" + packed.getvalue())
    (folder / "layer").write_bytes(b"\x04" + taken.getvalue())


def main() -> None:
    corpus = Path(sys.argv[1])
    seeds(corpus, Path(__file__).parents[1] / "data" / "fatbin")
    limits = ["-max_len=6000", "-timeout=10", "-rss_limit_mb=512", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], str(corpus), *limits, *sys.argv[2:]], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
