"""Is a data set what the pinned verl reads? Columns, types, reward sources and prompt lengths.

Source of what verl reads: verl 0.5.0, verl/utils/dataset/rl_dataset.py and verl/workers/reward_manager/naive.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.train.lengths import LengthStatistics, PromptTokenizer

_BATCH = 1024
_MAKE = "`envbuilder data gsm8k --from DIR --out DIR` writes what verl reads; a mapping file does it for other data."


@dataclass
class DataSet:
    """Training and validation file, rows of the first, and how many of them have a prompt that fits.

    ``sources`` are the data sources in it, ``lengths`` the statistics of prompts in tokens (with ``over_limit``).
    """

    train: Path
    validation: Path
    rows: int = 0
    usable: int = 0
    sources: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)


def find_data(path: Path) -> DataSet:
    """The files of a data folder: ``train.parquet``, and ``test.parquet`` or ``validation.parquet`` where it is there.

    Raises InputError when there is no training file.
    """
    train = path / "train.parquet" if path.is_dir() else path
    if not train.is_file():
        raise InputError(
            "there is no train.parquet in the data folder" if path.is_dir() else "there is no such file or folder",
            place=Place(str(path)), cure=_MAKE,
        )  # fmt: skip
    others = (train.with_name(name) for name in ("validation.parquet", "test.parquet"))
    return DataSet(train, next((other for other in others if other.is_file()), train))


def check_data(data: DataSet, tokenizer: PromptTokenizer | None, limit: int) -> None:
    """Read the training file once and fill in ``data``. ``limit`` is the prompt length in tokens.

    Raises InputError for a file that is no Parquet, a column that is missing or of another type, an empty field.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in dict.fromkeys((data.train, data.validation)):
        try:
            with pq.ParquetFile(path) as file:
                _check_columns(path, file.schema_arrow)
                if path == data.train:
                    _read(path, file, data, tokenizer, limit)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"the file cannot be read as Parquet: {str(error).splitlines()[0]}", place=Place(str(path)), cure=_MAKE
            ) from None


def _check_columns(path: Path, schema: Any) -> None:
    import pyarrow as pa

    missing = [name for name in ("data_source", "prompt", "reward_model") if name not in schema.names]
    if missing:
        raise InputError(
            f"the data has no column {', '.join(missing)}; it has {', '.join(schema.names)}", place=Place(str(path)),
            cure=_MAKE,
        )  # fmt: skip
    prompt, reward = schema.field("prompt").type, schema.field("reward_model").type
    lists = (pa.types.is_list, pa.types.is_large_list)
    messages = any(of(prompt) for of in lists) and pa.types.is_struct(prompt.value_type)
    if not messages or {"role", "content"} - {f.name for f in prompt.value_type}:
        raise InputError(
            f"the column prompt is {prompt}, not a list of chat messages with role and content",
            place=Place(str(path), field="prompt"), cure=_MAKE,
        )  # fmt: skip
    if not pa.types.is_struct(reward) or "ground_truth" not in {f.name for f in reward}:
        raise InputError(
            f"the column reward_model is {reward} and holds no ground_truth",
            place=Place(str(path), field="reward_model"), cure=_MAKE,
        )  # fmt: skip


def _read(path: Path, file: Any, data: DataSet, tokenizer: PromptTokenizer | None, limit: int) -> None:
    statistics = LengthStatistics.empty()
    sources: dict[str, None] = {}
    # verl writes into extra_info, so where the column is there no row may leave it empty.
    names = [
        name for name in ("data_source", "prompt", "reward_model", "extra_info") if name in file.schema_arrow.names
    ]
    for batch in file.iter_batches(batch_size=_BATCH, columns=names):
        rows = batch.to_pylist()
        for number, row in enumerate(rows, start=data.rows + 1):
            empty = [name for name in names if row[name] is None]
            if not empty and (row["reward_model"]["ground_truth"] is None or not row["prompt"]):
                empty = ["reward_model.ground_truth" if row["prompt"] else "prompt"]
            if empty:
                raise InputError(
                    f"row {number} has no {empty[0]}", place=Place(str(path), field=empty[0]),
                    cure="Mend or leave out the row, then write the file again.",
                )  # fmt: skip
            sources[row["data_source"]] = None
        data.rows += len(rows)
        if tokenizer:
            for length in tokenizer.lengths([row["prompt"] for row in rows]):
                statistics.add(length)
    data.sources = sorted(sources)
    data.lengths = statistics.summary(limit)
    data.usable = data.rows - data.lengths.get("over_limit", 0)
