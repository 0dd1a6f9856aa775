"""Stock verl 0.5.0 against ours, side by side in one run: time and memory of a PPO step, and whether both say the same.

    python benchmarks/bench_train.py --profile stack.json --out results.json [--shape 0.5b] [--device cuda]

Needs what an image of envbuilder holds (torch, verl, transformers), and for figures that mean something a GPU.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from pathlib import Path
from typing import Any

import torch
from decode_kernels import breakdown
from sampled_tokens import Warp, held_against

from envbuilder.smoke import footprint
from envbuilder.smoke.context import Context, Options
from envbuilder.smoke.facts import HostFacts
from envbuilder.smoke.loop import PHASES, PpoLoop, Sizes
from envbuilder.smoke.manifest import load_manifest
from envbuilder.smoke.shapes import SHAPES

CAP_GIB = 22.5
STOCK: dict[str, Any] = {}


def restore() -> None:
    """Undo what a run with ours installed, so that stock is stock."""
    from verl.workers.actor.dp_actor import DataParallelPPOActor
    from verl.workers.rollout import hf_rollout

    if not STOCK:
        STOCK.update(
            forward=DataParallelPPOActor._forward_micro_batch, rollout=hf_rollout.HFRollout, adamw=torch.optim.AdamW
        )
    DataParallelPPOActor._forward_micro_batch = STOCK["forward"]
    if hasattr(DataParallelPPOActor, "_envbuilder_stock"):
        del DataParallelPPOActor._envbuilder_stock
    hf_rollout.HFRollout = STOCK["rollout"]
    torch.optim.AdamW = STOCK["adamw"]


def build(
    args: argparse.Namespace,
    sizes: Sizes,
    ours: bool,
    greedy: bool = False,
    checkpointing: bool = False,
    attention: str = "",
) -> PpoLoop:
    """A loop with stock verl, or with our rollout and step in its place.

    The adaptation keeps the prompt's position ids from generate in both: only so are the stock tokens those of
    Hugging Face's own generate.
    """
    import envbuilder.smoke.external_lib  # noqa: F401  # before verl is imported

    restore()
    if ours:
        from envbuilder.train.rollout import verl_rollout
        from envbuilder.train.step import actor

        verl_rollout.install()
        actor.install()
    manifest = load_manifest(args.profile)
    if attention:
        manifest.stack["compute"]["attention"] = attention  # type: ignore[index]  # read-only to its readers
    context = Context(Options(device=args.device), manifest, HostFacts(), lambda event: None)
    loop = PpoLoop(context, SHAPES[args.shape], sizes, eos=args.eos)
    if checkpointing:
        for name in ("actor", "critic"):
            loop.modules[name].gradient_checkpointing_enable({"use_reentrant": False})
    if greedy:
        batch = loop._batch

        def greedy_batch() -> Any:
            data = batch()
            data.meta_info["do_sample"] = False
            return data

        loop._batch = greedy_batch
    return loop


def free(loop: PpoLoop) -> None:
    """Give all memory back before the next run."""
    loop.__dict__.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def timed(args: argparse.Namespace, sizes: Sizes, ours: bool, steps: int, **kwargs: Any) -> dict[str, Any]:
    """Mean seconds by phase over ``steps`` steps after two warm ones; peak and growth."""
    loop = build(args, sizes, ours, **kwargs)
    loop.step()
    loop.step()
    done = [loop.step() for _ in range(steps)]
    seconds = {phase: sum(s.seconds[phase] for s in done) / steps for phase in PHASES}
    result = {
        "sizes": vars(sizes),
        "seconds": {k: round(v, 4) for k, v in seconds.items()},
        "step_s": round(sum(seconds.values()), 4),
        "samples_per_s": round(sizes.batch / sum(seconds.values()), 3),
        "peak_gib": round(max(s.peak_bytes for s in done) / 2**30, 3),
        "growth_mib": round((done[-1].memory_bytes - done[0].memory_bytes) / 2**20, 3),
        "response_tokens": [s.metrics["response tokens"] for s in done],
    }
    if ours:
        result["fallbacks"] = getattr(loop.modules["actor"].generate, "reasons", "stock generate")
    free(loop)
    return result


def same(args: argparse.Namespace, sizes: Sizes, steps: int) -> dict[str, Any]:
    """Greedy runs of ``steps`` steps, stock and ours: the largest relative difference of each of verl's metrics."""
    runs: dict[bool, list[Any]] = {}
    growth: dict[str, float] = {}
    for ours in (False, True):
        loop = build(args, sizes, ours, greedy=True)
        runs[ours] = [loop.step() for _ in range(steps)]
        memory = [s.memory_bytes for s in runs[ours]]
        growth["ours" if ours else "stock"] = (memory[-1] - memory[steps // 10]) / 2**20
        free(loop)
    worst: dict[str, float] = {}
    first: dict[str, int] = {}
    for a, b in zip(runs[False], runs[True], strict=True):
        for key, value in a.metrics.items():
            gap = abs(value - b.metrics[key]) / max(1e-3, abs(value))
            worst[key] = max(worst.get(key, 0.0), gap)
            if gap > 0.01:
                first.setdefault(key, a.number)
    return {
        "steps": steps,
        "worst_relative": {k: float(f"{v:.2e}") for k, v in worst.items()},
        "first_step_over_1_percent": first,
        "growth_mib": growth,
    }


def soak(args: argparse.Namespace, sizes: Sizes, steps: int) -> dict[str, Any]:
    """``steps`` steps with ours under the guard, memory capped by it: growth, findings, seconds."""
    from statistics import median

    from envbuilder.smoke.guard import Guard
    from envbuilder.smoke.regression import trend

    profile = json.loads(args.profile.read_text())["gpu"]
    with Guard(profile) as guard:
        loop = build(args, sizes, True)
        done = []
        for _ in range(steps):
            done.append(loop.step())
            if len(done) % 20 == 0:
                print(f"  step {len(done)}", flush=True)
    growth = trend([s.memory_bytes / 2**20 for s in done])
    result = {
        "steps": len(done),
        "median_step_s": round(median(sum(s.seconds.values()) for s in done), 3),
        "peak_gib": round(max(s.peak_bytes for s in done) / 2**30, 3),
        "memory_mib": [round(done[i].memory_bytes / 2**20, 2) for i in (0, len(done) // 2, -1)],
        "growth_mib_a_step": None if growth is None else [round(v, 5) for v in (growth.slope, growth.low, growth.high)],
        "guard_findings": [f.title for f in guard.findings],
        "guard_facts": {k: v for k, v in guard.facts.items() if k != "scope"},
        "fallbacks": getattr(loop.modules["actor"].generate, "reasons", "stock generate"),
    }
    free(loop)
    return result


def decode(args: argparse.Namespace, batch: int, tokens: int) -> dict[str, Any]:
    """``tokens`` greedy tokens by Hugging Face generate and by ours: seconds of each, whether they agree, growth."""
    sizes = Sizes(prompt=256 if args.shape != "toy" else 8, response=tokens, batch=batch)
    out: dict[str, Any] = {"batch": batch, "tokens": tokens}
    responses = {}
    for ours in (False, True):
        loop = build(args, sizes, ours, greedy=True)
        data = loop._batch()
        # Ours compiles and captures for the whole length; generate is warm after a few tokens.
        data.meta_info["response_length"] = tokens if ours else min(8, tokens)
        loop.rollout.generate_sequences(data)
        data.meta_info["response_length"] = tokens
        memory = []
        for _ in range(3 if ours else 1):
            loop.context.synchronize()
            begin = time.perf_counter()
            made = loop.rollout.generate_sequences(data).batch["responses"].cpu()
            out["ours_s" if ours else "hf_s"] = round(time.perf_counter() - begin, 4)
            memory.append(footprint.used(loop.context.on_gpu))
        responses[ours] = made
        if ours:
            out["growth_bytes"] = memory[-1] - memory[0]
            out["fallbacks"] = getattr(loop.modules["actor"].generate, "reasons", "stock generate")
        free(loop)
    differ = (responses[False] != responses[True]).any(dim=0).nonzero()
    out["ratio"] = round(out["hf_s"] / out["ours_s"], 2)
    out["ms_a_token"] = round(1000 * out["ours_s"] / tokens, 3)
    out["equal_share"] = float((responses[False] == responses[True]).float().mean())
    out["first_difference"] = int(differ[0]) if len(differ) else None
    out["distinct_tokens"] = len(responses[True].unique())
    return out


def kernels(args: argparse.Namespace, batch: int, tokens: int) -> dict[str, Any]:
    """Where the time of a sampled token of ours goes. Needs a GPU."""
    loop = build(args, Sizes(tokens, tokens, batch), True)
    data = loop._batch()
    loop.rollout.generate_sequences(data)
    weights = footprint.of_module(loop.modules["actor"])
    result = breakdown(lambda: loop.rollout.generate_sequences(data), tokens, weights)
    free(loop)
    return {"batch": batch, **result}


def sampled(args: argparse.Namespace, tokens: int, warp: Warp) -> dict[str, Any]:
    """Sampled tokens of both paths held against the distribution they should come from; few of the slow path."""
    batch, prompt = (8, 64) if args.shape != "toy" else (4, 8)
    out: dict[str, Any] = {"batch": batch, "warp": vars(warp)}
    for ours in (False, True):
        count = tokens if ours else max(8, tokens // 16)
        loop = build(args, Sizes(prompt, count, batch), ours)
        data = loop._batch()
        data.meta_info |= vars(warp)
        made = loop.rollout.generate_sequences(data).batch
        evidence = held_against(loop.modules["actor"], made, warp)
        out["ours" if ours else "hf"] = {"response": count, **evidence}
        free(loop)
    return out


def main() -> None:
    """Run what was asked for, one JSON line a result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shape", default="0.5b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--eos", type=int, default=-1, help="a token that is never chosen keeps all lengths equal")
    parser.add_argument("--parts", default="decode,long,sampled,step,same")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--same-steps", type=int, default=100)
    args = parser.parse_args()
    if args.device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = False
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, CAP_GIB * 2**30 / total))
    results: dict[str, Any] = {"torch": torch.__version__}
    tokens = 256 if args.shape != "toy" else 8

    def say(name: str, value: Any) -> None:
        results[name] = value
        print(json.dumps({name: value}), flush=True)
        args.out.write_text(json.dumps(results, indent=1))

    if "decode" in args.parts:
        for batch in (1, 8):
            say(f"decode b{batch}", decode(args, batch, tokens))
    long = 1000 if args.shape != "toy" else 12
    if "long" in args.parts:
        say("decode 1000", decode(args, 1, long))
    if "sampled" in args.parts:
        for warp in (Warp(), Warp(temperature=0.7, top_k=50, top_p=0.9)):
            say(f"sampled {warp.temperature} {warp.top_k} {warp.top_p}", sampled(args, long, warp))
    if "kernels" in args.parts:
        for batch in (1, 8):
            say(f"kernels b{batch}", kernels(args, batch, tokens))
    if "step" in args.parts:
        one, eight = Sizes(tokens, tokens, 1), Sizes(tokens, tokens, 8)
        stock, mine = timed(args, one, False, args.steps), timed(args, one, True, args.steps)
        say("stock b1", stock)
        say("ours b1", mine)
        stock8 = timed(args, eight, False, max(1, args.steps // 2), checkpointing=True)
        say("stock b8 checkpointing", stock8)
        for checkpointing in (True, False):
            name = "ours b8 checkpointing" if checkpointing else "ours b8"
            try:
                mine8 = timed(args, eight, True, args.steps, checkpointing=checkpointing)
            except torch.OutOfMemoryError as error:
                say(name, str(error)[:200])
                continue
            say(name, mine8)
            ratios = {
                "step b1, stock / ours": stock["step_s"] / mine["step_s"],
                "samples a second, ours b8 / stock b1": mine8["samples_per_s"] / stock["samples_per_s"],
                "samples a second, ours b8 / stock b8": mine8["samples_per_s"] / stock8["samples_per_s"],
                "rollout b1, stock / ours": stock["seconds"]["rollout"] / mine["seconds"]["rollout"],
                "peak b1, ours / stock": mine["peak_gib"] / max(1e-9, stock["peak_gib"]),
                "peak b8, ours / stock": mine8["peak_gib"] / max(1e-9, stock8["peak_gib"]),
            }
            say(f"ratios, {name}", {k: round(v, 2) for k, v in ratios.items()})
    if "soak" in args.parts:
        say("soak", soak(args, Sizes(128, 16, 2) if args.shape != "toy" else Sizes(8, 8, 2), args.same_steps))
    if "same" in args.parts:
        short = Sizes(32, 16, 2) if args.shape != "toy" else Sizes(8, 8, 2)
        say("same", same(args, short, args.same_steps))


if __name__ == "__main__":
    main()
