"""Turning a data set into verl's RL Parquet: read, map, measure, write; nothing is dropped without being counted."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envbuilder.errors import InputError, Place
from envbuilder.report.progress import Progress
from envbuilder.train.lengths import LengthStatistics, PromptTokenizer
from envbuilder.train.mapping import BadRowError, DataMapping
from envbuilder.train.rows import BrokenRow, find_splits, read_rows

if TYPE_CHECKING:
    import pyarrow as pa

_BATCH = 1024  # rows mapped and measured at a time
# A row group: large, because a Parquet writer remembers each of them until the end; bounded, because it is held whole.
_GROUP_ROWS, _GROUP_BYTES = 1 << 16, 1 << 25
SHOWN = 5  # broken rows shown whole; the rest is counted


@dataclass
class SplitResult:
    """What became of one split. ``broken`` holds the first few broken rows, ``broken_count`` all of them."""

    name: str
    output: str
    rows: int = 0
    broken_count: int = 0
    broken: list[BrokenRow] = field(default_factory=list)
    over_limit_dropped: int = 0
    lengths: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Options:
    """``skip_broken``: go on past broken rows. ``drop_long``: leave out prompts over ``max_prompt`` tokens."""

    skip_broken: bool = False
    max_prompt: int | None = None
    drop_long: bool = False


def convert(
    source: Path,
    out: Path,
    mapping: DataMapping,
    options: Options,
    tokenizer: PromptTokenizer | None,
    progress: Progress,
) -> list[SplitResult]:
    """Write ``out/SPLIT.parquet`` for every split of ``source``. Raises InputError at a broken row unless skipping.

    Each file appears whole or not at all.
    """
    results = []
    for name, files in find_splits(source).items():
        progress.stage(f"{name}: {len(files)} file{'s' if len(files) != 1 else ''}")
        results.append(_convert_split(name, files, out, mapping, options, tokenizer, progress))
    return results


def _convert_split(
    name: str,
    files: list[Path],
    out: Path,
    mapping: DataMapping,
    options: Options,
    tokenizer: PromptTokenizer | None,
    progress: Progress,
) -> SplitResult:
    import pyarrow as pa
    import pyarrow.parquet as pq

    out.mkdir(parents=True, exist_ok=True)
    target = out / f"{name}.parquet"
    partial = out / f".{name}.parquet.partial"
    result = SplitResult(name, str(target))
    statistics = LengthStatistics.empty()
    schema = _schema(mapping)
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd") as writer:
            group: list[pa.RecordBatch] = []
            for batch in _batched(_mapped(files, name, mapping, options, result, progress)):
                kept = _measure(batch, options, tokenizer, statistics, result)
                group.append(pa.RecordBatch.from_pylist(kept, schema=schema))
                result.rows += len(kept)
                if sum(b.num_rows for b in group) >= _GROUP_ROWS or sum(b.nbytes for b in group) >= _GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group.clear()
            if group:
                writer.write_table(pa.Table.from_batches(group))
        if result.rows == 0:
            raise InputError(f"split {name!r} gives no rows", place=Place(str(files[0])), cure=_why_empty(result))
        partial.replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            partial.unlink()
    result.lengths = statistics.summary(options.max_prompt)
    return result


def _schema(mapping: DataMapping) -> pa.Schema:
    import pyarrow as pa

    text = pa.string()
    extra = [pa.field("split", text), pa.field("index", pa.int64()), *(pa.field(name, text) for name in mapping.extra)]
    message = pa.struct([pa.field("role", text), pa.field("content", text)])
    return pa.schema(
        [
            pa.field("data_source", text),
            pa.field("prompt", pa.list_(message)),
            pa.field("ability", text),
            pa.field("reward_model", pa.struct([pa.field("style", text), pa.field("ground_truth", text)])),
            pa.field("extra_info", pa.struct(extra)),
        ]
    )


def _mapped(
    files: list[Path], split: str, mapping: DataMapping, options: Options, result: SplitResult, progress: Progress
) -> Iterator[dict[str, Any]]:
    index = 0
    total = sum(f.stat().st_size for f in files)
    done = 0

    def told(read: int) -> None:
        progress.advance(done + read, total)

    for file in files:
        progress.item(file.name)
        for row in read_rows(file, told):
            broken = row if isinstance(row, BrokenRow) else None
            if not isinstance(row, BrokenRow):
                try:
                    mapped = mapping.row(row.data, split, index)
                except BadRowError as error:
                    broken = BrokenRow(row.place, str(error))
                else:
                    index += 1
                    yield mapped
            if broken:
                _take_broken(broken, options, result)
        done += file.stat().st_size
        progress.advance(done, total)


def _take_broken(broken: BrokenRow, options: Options, result: SplitResult) -> None:
    result.broken_count += 1
    if len(result.broken) < SHOWN:
        result.broken.append(broken)
    if not options.skip_broken:
        raise InputError(
            f"a broken row: {broken.why}",
            place=broken.place,
            cure="Mend the row, or give --broken skip to leave such rows out and have them counted.",
        )


def _batched(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def _measure(
    batch: list[dict[str, Any]],
    options: Options,
    tokenizer: PromptTokenizer | None,
    statistics: LengthStatistics,
    result: SplitResult,
) -> list[dict[str, Any]]:
    if tokenizer is None:
        return batch
    kept = []
    for row, length in zip(batch, tokenizer.lengths([row["prompt"] for row in batch]), strict=True):
        statistics.add(length)
        if options.drop_long and options.max_prompt and length > options.max_prompt:
            result.over_limit_dropped += 1
        else:
            kept.append(row)
    return kept


def _why_empty(result: SplitResult) -> str:
    if result.broken_count:
        return f"All {result.broken_count} rows are broken; the first: {result.broken[0].why}."
    if result.over_limit_dropped:
        return f"All {result.over_limit_dropped} prompts exceed the limit; raise --max-prompt."
    return "The file is empty."
