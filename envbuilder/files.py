"""Writing files so that nobody ever sees half of one, and hashing them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from envbuilder.errors import HostError, Place


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` through a temporary file beside it, making parent folders.

    Raises HostError when the disk is full or the folder cannot be written.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Like write_text, for bytes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            stream.write(data)
    except OSError as error:
        raise HostError(
            f"cannot write the file: {error.strerror}",
            place=Place(str(path)),
            cure="Free some space or choose a folder you may write to, then run the command again.",
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Write what ``path`` shall hold: it has that name when all is written, and nothing is left when something fails.

    A link stays a link: what it points to is written. A device, pipe or socket is never replaced by a file.
    Raises OSError as the system does.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, not a file", str(path))
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; a lock or report is read by others too.
        umask = os.umask(0)
        os.umask(umask)
        Path(name).chmod(0o666 & ~umask)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()
        raise


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file's bytes, in lower-case hex."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
