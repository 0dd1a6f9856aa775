"""``envbuilder plan``: does it fit, where does the memory go, what to change first."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.stack.gpu import GpuProfile
    from envbuilder.train.plan import Plan

_COLOURS = ("cyan", "blue", "green", "magenta", "yellow", "white", "red")
_WIDTH = 60


@click.command(name="plan")
@click.option("--model", "model_dir", required=True, type=click.Path(path_type=Path), help="The model's folder.")
@click.option("--gpu", "gpu_name", default="p40", show_default=True, help="The card.")
@click.option("--prompt", type=click.IntRange(min=1), default=256, show_default=True, help="Prompt, in tokens.")
@click.option("--response", type=click.IntRange(min=1), default=256, show_default=True, help="Response, in tokens.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Micro batch, in sequences.")
@click.option("--checkpointing", is_flag=True, help="With gradient checkpointing.")
@click.option("--attention", type=click.Choice(["eager", "sdpa"]), default="eager", show_default=True)
@click.option("--lora", type=click.IntRange(min=1), metavar="RANK", help="Train LoRA adapters in the actor.")
@click.option(
    "--offload",
    type=click.Choice(["optimiser", "reference"]),
    multiple=True,
    help="Keep it in host memory between uses; may be given twice.",
)
@click.option("--stock", is_flag=True, help="Stock verl: whole logits and torch's default optimiser step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(
    ctx: click.Context,
    model_dir: Path,
    gpu_name: str,
    prompt: int,
    response: int,
    batch: int,
    checkpointing: bool,
    attention: str,
    lora: int | None,
    offload: tuple[str, ...],
    stock: bool,
    as_json: bool,
) -> None:
    """Plan the memory of a PPO step: actor, critic and reference of one model on one card, in float32.

    Exit 0: it fits. 1: it does not.

    \b
    Example:
      envbuilder plan --model Qwen2.5-0.5B-Instruct/ --gpu p40 --prompt 256 --response 256 --batch 8
    """
    from envbuilder.stack.gpu import load_gpu
    from envbuilder.train.decoder_config import read_decoder_config
    from envbuilder.train.plan import GIB, Setting, advice, make_plan

    gpu = load_gpu(gpu_name)
    model = read_decoder_config(model_dir)
    setting = Setting(
        prompt,
        response,
        batch,
        checkpointing,
        attention,
        chunked=not stock,
        fused_optimiser=not stock,
        offload_optimiser="optimiser" in offload,
        offload_reference="reference" in offload,
        lora_rank=lora or 0,
    )
    plan = make_plan(model, setting, gpu)
    limit = int(gpu.usable_memory_gib.value * GIB)
    fits = plan.peak <= limit
    changes = advice(model, setting, gpu)
    if as_json:
        data = {
            "schema": 1,
            "fits": fits,
            "limit_bytes": limit,
            "at_rest_bytes": plan.at_rest,
            "peak_bytes": plan.peak,
            "peak_phase": plan.peak_phase,
            "measured": setting.measured,
            **asdict(plan),
            "published_steps_s": [step.model_dump() for step in gpu.published_ppo_steps_s],
            "changes": [{"change": text, "peak_bytes": other.peak} for text, other in changes],
        }
        click.echo(json.dumps(data, indent=2))
    else:
        _show(plan, limit, gpu, changes)
    ctx.exit(0 if fits else 1)


def _show(plan: Plan, limit: int, gpu: GpuProfile, changes: list[tuple[str, Plan]]) -> None:
    from rich.console import Console

    from envbuilder.train.plan import GIB

    show_picture(plan, limit)
    console = Console(highlight=False)
    console.print(f"\nat rest {plan.at_rest / GIB:.1f} GiB; highest point by phase:")
    for phase, size in plan.phases.items():
        mark = "  <- the peak" if phase == plan.peak_phase else ""
        console.print(f"  {phase:<10} {size / GIB:6.2f} GiB{mark}")
    if not plan.setting.measured:
        console.print("[yellow]LoRA and offload in this combination are an estimate, not measured.[/]")
    total = sum(plan.seconds.values())
    console.print(
        f"\nNo step can take less than {total:.2f} s on a {gpu.title} ({gpu.memory_bandwidth_gb_s.value:.0f} GB/s, "
        f"{gpu.fp32_tflops.value} TFLOPS): " + ", ".join(f"{k} {v:.2f}" for k, v in plan.seconds.items()),
        soft_wrap=True,
    )
    console.print("That is a floor from the card's rates, an estimate, not a measurement.")
    if gpu.published_ppo_steps_s:
        console.print(
            f"Published for PPO with verl on this card, lengths not told: "
            f"{' and '.join(f'{step.value:g} s' for step in gpu.published_ppo_steps_s)} a step.",
            soft_wrap=True,
        )
    if plan.peak > limit:
        console.print(
            f"\n[bold red]It does not fit[/]: {(plan.peak - limit) / GIB:.1f} GiB too much. What to change first:"
        )
    else:
        console.print(f"\n[bold green]It fits[/], {(limit - plan.peak) / GIB:.1f} GiB are left. What would leave more:")
    for text, other in changes:
        console.print(f"  {text}: peak {other.peak / GIB:.1f} GiB", soft_wrap=True)


def show_picture(plan: Plan, limit: int) -> None:
    """The bar of the modules against the card's memory, and each module's share."""
    from rich.console import Console

    from envbuilder.train.plan import GIB

    console = Console(highlight=False)
    scale = max(limit, plan.peak) / _WIDTH
    step = plan.peak - plan.at_rest
    parts = [*plan.modules.items(), (f"{plan.peak_phase} step", step)]
    bar, drawn, filled = "", 0, 0.0
    for (_, size), colour in zip(parts, _COLOURS, strict=True):
        filled += size / scale
        cells = round(filled) - drawn
        drawn += cells
        bar += f"[{colour}]{'█' * cells}[/]"
    console.print(f"{bar}{'·' * (_WIDTH - drawn)}  {plan.peak / GIB:.1f} of {limit / GIB:.1f} GiB")
    for (name, size), colour in zip(parts, _COLOURS, strict=True):
        console.print(f"  [{colour}]█[/] {name:<18} {size / GIB:6.2f} GiB")
