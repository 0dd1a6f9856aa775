"""Reading a data set row by row in constant memory: JSONL, Parquet, Arrow folders, and the hub's layout of those."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place

# One line of JSONL beyond this is a broken file, not a row.
MAX_LINE_BYTES = 64 * 1024 * 1024
_BATCH = 1024  # rows
_SHARD = re.compile(r"-\d{5}-of-\d{5}$")


@dataclass(frozen=True)
class BrokenRow:
    """A row that could not be read: where, and why."""

    place: Place
    why: str


@dataclass(frozen=True)
class Row:
    """A row and where it stands. ``place.line`` counts from 1."""

    place: Place
    data: dict[str, Any]


def find_splits(path: Path) -> dict[str, list[Path]]:
    """The files of each split below ``path``: a file is one split, a folder holds one a name.

    Understood: ``train.jsonl``, ``train.parquet``, the hub's ``main/train-00000-of-00001.parquet``, and the folders
    that ``save_to_disk`` writes (``train/data-00000-of-00001.arrow`` beside ``dataset_info.json``).
    Raises InputError when nothing of that is there.
    """
    if path.is_file():
        return {_split_name(path): [path]}
    if not path.is_dir():
        raise InputError("there is no such file or folder", place=Place(str(path)))
    splits: dict[str, list[Path]] = {}
    for file in sorted(path.rglob("*")):
        if file.suffix not in (".jsonl", ".json", ".parquet", ".arrow") or not file.is_file():
            continue
        if file.name in ("dataset_info.json", "state.json", "dataset_dict.json") or file.name.startswith("cache-"):
            continue
        name = _split_name(file)
        if file.suffix == ".arrow":
            name = file.parent.name if (file.parent / "state.json").is_file() and file.parent != path else "train"
        splits.setdefault(name, []).append(file)
    if not splits:
        raise InputError(
            "the folder holds no data set",
            place=Place(str(path)),
            cure="Give a .jsonl or .parquet file, a folder of them, or a folder that save_to_disk wrote.",
        )
    return splits


def _split_name(path: Path) -> str:
    return _SHARD.sub("", path.name.removesuffix(path.suffix))


def read_rows(path: Path, told: Callable[[int], None] = lambda _: None) -> Iterator[Row | BrokenRow]:
    """The rows of one file, one at a time. Raises InputError when the file as a whole is not what its name says.

    ``told`` hears every thousand rows or so how many bytes of the file are read.
    """
    if path.suffix in (".jsonl", ".json"):
        yield from _jsonl(path, told)
    else:
        yield from _columnar(path, told)


def _jsonl(path: Path, told: Callable[[int], None]) -> Iterator[Row | BrokenRow]:
    with path.open("rb") as stream:
        number = 0
        while line := stream.readline(MAX_LINE_BYTES + 1):
            number += 1
            if number % _BATCH == 0:
                told(stream.tell())
            place = Place(str(path), number)
            if len(line) > MAX_LINE_BYTES:
                raise InputError(f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", place=place)
            if not line.strip():
                continue
            try:
                data = json.loads(line)
            except (ValueError, RecursionError) as error:
                if number == 1 and line.lstrip()[:1] == b"[":
                    raise _one_array(place) from None
                yield BrokenRow(place, f"not JSON: {error}")
                continue
            if number == 1 and isinstance(data, list):
                raise _one_array(place)
            if isinstance(data, dict):
                yield Row(place, data)
            else:
                yield BrokenRow(place, f"a {type(data).__name__}, not an object")


def _one_array(place: Place) -> InputError:
    return InputError(
        "this is one JSON array, not one object a line",
        place=place,
        cure="Write one object a line (JSONL): jq -c '.[]' does it.",
    )


def _columnar(path: Path, told: Callable[[int], None]) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        if path.suffix == ".parquet":
            with pq.ParquetFile(path) as file:
                size, rows = path.stat().st_size, max(1, file.metadata.num_rows)
                for batch in file.iter_batches(batch_size=_BATCH):
                    told(size * number // rows)
                    for data in batch.to_pylist():
                        number += 1
                        yield Row(Place(str(path), number), data)
        else:
            with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as stream:
                for batch in stream:
                    told(source.tell())
                    for data in batch.to_pylist():
                        number += 1
                        yield Row(Place(str(path), number), data)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"the file cannot be read as {path.suffix[1:] or 'an Arrow stream'}: {str(error).splitlines()[0]}",
            place=Place(str(path)),
            cure="Fetch or export it again; a file that was cut short looks like this.",
        ) from error
