"""Peak memory of a PPO step by phase, over many settings, beside what ``envbuilder plan`` says of them.

    python benchmarks/measure_memory.py --profile stack.json --out memory.json [--shape 0.5b]

Needs a GPU and what an image of envbuilder holds. One JSON line a setting.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bench_train
import memory_saving
import torch

from envbuilder.smoke import footprint
from envbuilder.smoke.loop import PpoLoop, Sizes

# (prompt, response, batch, checkpointing, attention, ours)
SETTINGS = [
    (256, 256, 1, False, "eager", False),
    (256, 256, 1, False, "eager", True),
    (256, 256, 2, False, "eager", True),
    (256, 256, 2, True, "eager", True),
    (256, 256, 4, True, "eager", True),
    (256, 256, 4, False, "sdpa", True),
    (256, 256, 8, True, "eager", True),
    (256, 256, 8, True, "sdpa", True),
    (256, 256, 4, True, "eager", False),
    (256, 256, 8, True, "sdpa", False),
    (512, 512, 1, False, "eager", True),
    (512, 512, 2, True, "eager", True),
    (512, 512, 4, True, "sdpa", True),
    (512, 512, 2, True, "eager", False),
    (128, 128, 8, False, "eager", True),
    (1024, 1024, 1, True, "sdpa", True),
]
# (prompt, response, batch, checkpointing, attention, ours, saving)
SAVING = [
    (256, 256, 1, False, "eager", True, "optimiser"),
    (256, 256, 2, False, "eager", True, "reference"),
    (256, 256, 4, True, "eager", True, "optimiser, reference"),
    (256, 256, 1, False, "eager", False, "lora 16"),
    (256, 256, 4, True, "eager", False, "lora 16"),
]


@contextmanager
def phase_peaks(loop: PpoLoop) -> Iterator[dict[str, int]]:
    """Record the peak of allocated memory inside each phase, by wrapping what the loop calls."""
    peaks: dict[str, int] = {}
    wrapped = [
        (loop.rollout, "generate_sequences", "rollout"),
        (loop.actor, "compute_log_prob", "log-probs"),
        (loop.reference, "compute_log_prob", "log-probs"),
        (loop.critic, "compute_values", "values"),
        (loop.actor, "update_policy", "actor"),
        (loop.critic, "update_critic", "critic"),
    ]

    def watch(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            footprint.reset_peak(loop.context.on_gpu)
            result = call(*args, **kwargs)
            peaks[name] = max(peaks.get(name, 0), footprint.peak(loop.context.on_gpu))
            return result

        return watched

    for owner, method, name in wrapped:
        setattr(owner, method, watch(getattr(owner, method), name))
    yield peaks


def main() -> None:
    """Measure every setting."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eos", type=int, default=-1)
    parser.add_argument("--saving", action="store_true", help="the settings with LoRA and offload alone")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    names = ("prompt", "response", "batch", "checkpointing", "attention", "ours", "saving")
    for setting in SAVING if args.saving else [(*row, "") for row in SETTINGS]:
        prompt, response, batch, checkpointing, attention, ours, saving = setting
        if args.shape == "toy":
            prompt = response = 8
        row: dict[str, Any] = dict(zip(names, setting, strict=True))
        loop = bench_train.build(
            args, Sizes(prompt, response, batch), ours, checkpointing=checkpointing, attention=attention
        )
        if saving:
            memory_saving.apply(loop, saving)
        short_rollout(loop)
        loop.step()
        row["at_rest"] = footprint.used(loop.context.on_gpu)
        with phase_peaks(loop) as peaks:
            loop.step()
        row["peaks"] = peaks
        bench_train.free(loop)
        rows.append(row)
        print(json.dumps(row), flush=True)
        args.out.write_text(json.dumps(rows, indent=1))


def short_rollout(loop: PpoLoop) -> None:
    """Let Hugging Face's generate stop after a few tokens: its time is not what is measured."""
    generate = loop.modules["actor"].generate
    if type(generate).__name__ == "GraphGenerate":
        return

    def few(**kwargs: Any) -> Any:
        wanted = kwargs.pop("max_new_tokens")
        result = generate(**kwargs, max_new_tokens=4)
        fill = torch.randint_like(result.sequences[:, :1].expand(-1, wanted - 4), 3, 500)
        result.sequences = torch.cat([result.sequences, fill], dim=1)
        return result

    loop.modules["actor"].generate = few


if __name__ == "__main__":
    main()
