"""Models to run with: a toy, and the shape of Qwen2.5-0.5B, both with random weights in the Qwen2 format.

Random weights are enough: what is proven is that the code runs on the card and stays within its memory, not that
anything is learnt.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PretrainedConfig


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen2 model, named as its config.json names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool = True
    max_position_embeddings: int = 2048
    rope_theta: float = 1000000.0

    @property
    def told(self) -> dict[str, int]:
        """The sizes that a report names."""
        return {"hidden": self.hidden_size, "layers": self.num_hidden_layers, "vocabulary": self.vocab_size}

    def cache_bytes(self, tokens: int, batch: int) -> int:
        """Bytes of a float32 key-value cache for ``batch`` sequences of ``tokens`` tokens."""
        head = self.hidden_size // self.num_attention_heads
        return 2 * 4 * self.num_hidden_layers * self.num_key_value_heads * head * tokens * batch


TOY = Shape(64, 128, 2, 4, 2, 512)
# Qwen/Qwen2.5-0.5B-Instruct, config.json of revision 7ae5576
QWEN_0_5B = Shape(896, 4864, 24, 14, 2, 151936, max_position_embeddings=32768)
SHAPES = {"toy": TOY, "0.5b": QWEN_0_5B}

_CHAT = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# What a tokenizer trained on some hundred questions can fill; a model's vocabulary may be larger.
_TOKENS = 8192
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEXT = (
    "A farmer has 12 hens and each lays 5 eggs a week. How many eggs does she sell in 3 weeks?",
    "Tom reads 20 pages on Monday and twice as many on Tuesday. How many pages are that together?",
    "A box holds 6 pencils. How many boxes are needed for 45 pencils, and how many places stay empty?",
)


def config(shape: Shape, attention: str) -> PretrainedConfig:
    """The transformers config of ``shape``, in float32, with ``attention`` (``eager`` or ``sdpa``)."""
    import torch
    from transformers import Qwen2Config

    made = Qwen2Config(
        **asdict(shape), torch_dtype=torch.float32, bos_token_id=0, eos_token_id=2, pad_token_id=0, use_cache=True
    )
    made._attn_implementation = attention
    return made


def write_tokenizer(folder: Path, texts: Iterable[str], vocabulary: int) -> int:
    """Write a byte-level BPE tokenizer in Qwen2's format, trained on ``texts``; the number of tokens it has."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": _CHAT,
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1), encoding="utf-8")
    return tokenizer.get_vocab_size()


def write_model(folder: Path, shape: Shape, texts: Iterable[str] = _TEXT, attention: str = "eager") -> None:
    """Write a model of ``shape`` with random weights (float32, safetensors) and a tokenizer trained on ``texts``."""
    import torch
    from transformers import AutoModelForCausalLM

    write_tokenizer(folder, texts, min(shape.vocab_size, _TOKENS))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config(shape, attention))
    model.save_pretrained(folder, safe_serialization=True)


def encode(questions: Path, vocabulary: int) -> list[list[int]]:
    """The questions as token ids, below ``vocabulary``, of a tokenizer trained on them, in the chat format."""
    from transformers import AutoTokenizer

    texts = [question for question, _ in read_questions(questions)]
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(Path(folder), texts, min(vocabulary, _TOKENS))
        tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = ([{"role": "user", "content": text}] for text in texts)
    return [list(tokenizer.apply_chat_template(chat, add_generation_prompt=True)) for chat in chats]


def write_prompts(path: Path, questions: Iterable[tuple[str, str]]) -> int:
    """Write (question, answer) pairs as the parquet that verl reads; the number of rows."""
    from pyarrow import Table, parquet

    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": question}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"index": index},
        }
        for index, (question, answer) in enumerate(questions)
    ]
    parquet.write_table(Table.from_pylist(rows), path)
    return len(rows)


def read_questions(path: Path | None) -> list[tuple[str, str]]:
    """GSM8K's (question, final answer) pairs from its JSON lines, or a few of our own without a file."""
    if path is None:
        return [(text, str(n)) for n, text in enumerate(_TEXT * 8)]
    pairs = []
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        pairs.append((row["question"], row["answer"].rsplit("####", 1)[-1].strip()))
    return pairs
