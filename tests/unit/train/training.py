"""A toy model folder, a data folder and what is wanted of a run: stand-ins for the plumbing of `envbuilder train`."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from envbuilder.train.settings import Wanted

CONFIG = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "vocab_size": 64, "hidden_size": 16,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
QWEN = CONFIG | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "vocab_size": 151936,
}  # fmt: skip


def write_model(folder: Path, config: dict[str, Any] = CONFIG) -> Path:
    """A folder that the model check takes: its weights are the embedding alone, as a hole in the file."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "one": 1, "two": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages[0].content }}"}))
    (folder / "config.json").write_text(json.dumps(config))
    shape = [config["vocab_size"], config["hidden_size"]]
    size = 4 * shape[0] * shape[1]
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}
    ).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + size)
    return folder


def rows(count: int = 8, words: int = 2, source: str = "openai/gsm8k") -> list[dict[str, Any]]:
    return [
        {
            "data_source": source, "prompt": [{"role": "user", "content": "one " * words}], "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "2"}, "extra_info": {"index": number},
        }
        for number in range(count)
    ]  # fmt: skip


def write_data(folder: Path, data: list[dict[str, Any]] | None = None, name: str = "train") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows() if data is None else data), folder / f"{name}.parquet")
    return folder


def wanted(folder: Path, config: dict[str, Any] = CONFIG, **more: Any) -> Wanted:
    """A run over the two, both written here."""
    return Wanted(
        "p40-debian", write_model(folder / "model", config), write_data(folder / "data"), folder / "out", **more
    )
