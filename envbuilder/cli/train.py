"""``envbuilder train``: look, render, run and watch a PPO run in a stack's image."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from envbuilder.image.engine import Engine
    from envbuilder.stack.gpu import GpuProfile
    from envbuilder.stack.model import Stack
    from envbuilder.train.outfolder import OutFolder
    from envbuilder.train.preflight import Prepared
    from envbuilder.train.settings import Wanted


@click.command(name="train")
@click.argument("stack")
@click.option("--model", required=True, type=click.Path(path_type=Path), help="The model's folder.")
@click.option("--data", required=True, type=click.Path(path_type=Path), help="Folder with train.parquet.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Checkpoints, logs and metrics go here.")
@click.option(
    "--gpu",
    type=click.IntRange(min=0),
    default=None,
    metavar="N",
    help="The card, counted as nvidia-smi does (default 0).",
)
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="cpu: slow, for a toy model.")
@click.option("--prompt", type=click.IntRange(min=1), default=256, show_default=True, help="Prompt, in tokens.")
@click.option("--response", type=click.IntRange(min=1), default=256, show_default=True, help="Response, in tokens.")
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True, help="Sequences of a step.")
@click.option("--micro-batch", type=click.IntRange(min=1), help="Sequences of one forward (default: by the plan).")
@click.option("--checkpointing/--no-checkpointing", default=None, help="Gradient checkpointing (default: by the plan).")
@click.option(
    "--offload",
    type=click.Choice(["optimiser", "reference"]),
    multiple=True,
    help="Keep it in host memory between uses; may be given twice.",
)
@click.option("--steps", type=click.IntRange(min=1), help="Steps in all (default: one pass over the data).")
@click.option(
    "--save-every",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    help="Steps from checkpoint to checkpoint.",
)
@click.option("--reward", metavar="FILE[:FUNCTION]", help="Your reward function (default: verl's own for the data).")
@click.option("--set", "given", multiple=True, metavar="KEY=VALUE", help="A further override of verl; may be repeated.")
@click.option("--image", metavar="REF", help="The image (default: the stack's own).")
@click.option("--engine", default="auto", help="auto, docker or buildah.")
@click.option("--resume", is_flag=True, help="Go on from the last checkpoint with settings that changed.")
@click.option("--dry-run", is_flag=True, help="Show plan, checks, command and overrides; start nothing.")
@click.option("--script", type=click.Path(path_type=Path), help="Write the launch script only.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one event a line.")
def command(**given: Any) -> int:
    """Train a model with PPO in the image of STACK.

    The memory plan is asked first; model, data, disk, image and card are looked at before anything starts. Started
    again with the same settings, a run goes on from its last checkpoint. Ctrl-C ends it and keeps that.

    Exit code: 0 trained to the end, 1 stopped with a diagnosis, or something is missing, 2 wrong use, 130 interrupted.

    \b
    Example:
      envbuilder train p40-debian --model Qwen2.5-0.5B-Instruct/ --data data/ --out run/ --batch 8 --dry-run
      envbuilder train p40-debian --model Qwen2.5-0.5B-Instruct/ --data data/ --out run/ --batch 8
      envbuilder train p40-debian --model Qwen2.5-0.5B-Instruct/ --data data/ --out run/ --script train.sh
    """
    from envbuilder.errors import FAILED
    from envbuilder.stack.loading import load_stack
    from envbuilder.train.outfolder import OutFolder
    from envbuilder.train.preflight import prepare

    wanted = _wanted(given)
    stack, gpu = load_stack(wanted.stack)
    out = OutFolder(wanted.out)
    if given["script"]:
        return _write_script(given["script"], prepare(wanted, stack, gpu), given["as_json"])
    if not given["dry_run"] and (finished := _finished(wanted, out, given)) is not None:
        return finished
    done = prepare(wanted, stack, gpu)
    engine = _look_at_host(given, wanted, stack, gpu, done, out)
    if given["dry_run"]:
        return _dry_run(wanted, done, out, given)
    if not done.ready or engine is None:
        _present(done, given["as_json"])
        return FAILED
    return _run(wanted, stack, gpu, done, out, engine, given)


def _wanted(given: dict[str, Any]) -> Wanted:
    from envbuilder.train.settings import Wanted

    if given["device"] == "cpu" and given["gpu"] is not None:
        raise click.UsageError("--gpu names a card; --device cpu uses none.")
    reward, _, function = (given["reward"] or "").partition(":")
    return Wanted(
        given["stack"], given["model"], given["data"], given["out"],
        None if given["device"] == "cpu" else given["gpu"] or 0,
        given["prompt"], given["response"], given["batch"], given["micro_batch"], given["checkpointing"],
        given["offload"], given["steps"], given["save_every"], Path(reward) if reward else None,
        function or "compute_score", given["given"],
    )  # fmt: skip


def _finished(wanted: Wanted, out: OutFolder, given: dict[str, Any]) -> int | None:
    """0 when the run there is at its end already, which costs nothing; None when there is something to do."""
    from envbuilder.train.resuming import finished

    steps = finished(wanted, out, given["resume"])
    if steps is None:
        return None
    where = out.checkpoints / f"global_step_{steps}"
    if given["as_json"]:
        click.echo(json.dumps({"event": "end", "finished": True, "step": steps, "checkpoint": str(where)}))
    else:
        click.echo(f"all {steps} steps are done, the checkpoint is {where}; more with --steps")
    return 0


def _run(
    wanted: Wanted,
    stack: Stack,
    gpu: GpuProfile,
    done: Prepared,
    out: OutFolder,
    engine: Engine,
    given: dict[str, Any],
) -> int:
    from envbuilder.cli.training_view import view
    from envbuilder.errors import INTERRUPTED
    from envbuilder.report import present
    from envbuilder.train.running import start, verdict

    as_json = given["as_json"]
    with out.held():
        try:
            with view(as_json, sys.stdout.isatty()) as shown:
                ended = start(wanted, done, out, engine, _image(given), gpu, shown.event)
        except KeyboardInterrupt:
            from envbuilder.train.checkpoints import last_whole

            step = last_whole(out.checkpoints)
            kept = (
                f"the checkpoint of step {step} is kept, and the same command goes on from it"
                if step
                else "no step was saved"
            )
            click.echo(f"\ninterrupted; the container is gone, {kept}", err=True)
            return INTERRUPTED
        report = verdict(ended, stack, gpu, out)
    if as_json:
        click.echo(json.dumps({"event": "end", **report.to_dict()}, ensure_ascii=False))
    else:
        for line in report.facts.get("last lines", []) if not report.findings else []:
            click.echo(f"  | {line}")
        present.print_text(report)
    code: int = report.verdict.exit_code
    return code


def _look_at_host(
    given: dict[str, Any], wanted: Wanted, stack: Stack, gpu: GpuProfile, done: Prepared, out: OutFolder
) -> Engine | None:
    from envbuilder.image.choose import choose_engine
    from envbuilder.smoke.manifest import Manifest
    from envbuilder.stack.manifest import image_manifest
    from envbuilder.train.preflight import look_at_host

    facts = None
    if wanted.gpu is not None:
        from envbuilder.smoke.nvml import collect

        facts = collect()
    data = image_manifest(stack, gpu, lock_digest="")
    manifest = Manifest(data["stack"], data["gpu"], data["lock"], data["builds"])
    return look_at_host(done, wanted, out, lambda: choose_engine(given["engine"]), _image(given), manifest, facts)


def _image(given: dict[str, Any]) -> str:
    from envbuilder.image.names import image_tag

    reference: str = given["image"] or image_tag(given["stack"])
    return reference


def _write_script(path: Path, done: Prepared, as_json: bool) -> int:
    from envbuilder.files import write_text
    from envbuilder.train.settings import Paths

    if not done.ready:
        _present(done, as_json)
        return 1
    write_text(path, done.script)
    path.chmod(0o755)
    if as_json:
        click.echo(json.dumps({"event": "script", "path": str(path), "overrides": [str(row) for row in done.rows]}))
    else:
        inside = Paths()
        click.echo(
            f"{path}: run it in the stack's image with the model at {inside.model}, the data at "
            f"{Path(inside.train).parent} and a writable /out"
        )
    return 0


def _dry_run(wanted: Wanted, done: Prepared, out: OutFolder, given: dict[str, Any]) -> int:
    from envbuilder.train.running import command_of
    from envbuilder.train.settings import Paths

    if given["as_json"]:
        _present(done, as_json=True)
        rows = [{"key": row.key, "value": row.value, "why": row.why} for row in done.rows]
        click.echo(json.dumps({"event": "overrides", "overrides": rows}))
        return 0 if done.ready else 1
    if done.choice is not None:
        from envbuilder.cli.plan import show_picture

        show_picture(done.choice.plan, done.choice.limit)
    if done.rows:
        click.echo("\noverrides of verl:")
        for row in done.rows:
            click.echo(f"  {row}" + (f"   # {row.why}" if row.why else ""))
    inside = Paths()
    click.echo(f"\nwould run in {_image(given)}: {shlex.join(command_of())}")
    pairs = [(wanted.model, inside.model), (wanted.data, Path(inside.train).parent), (out.path, "/out (written)")]
    pairs += [(wanted.reward, inside.reward)] if wanted.reward else []
    for host, path in pairs:
        click.echo(f"  {host} -> {path}")
    click.echo()
    _present(done, as_json=False)
    return 0 if done.ready else 1


def _present(done: Prepared, as_json: bool) -> None:
    from envbuilder.report import Report, Verdict, present

    failed = [check for check in done.checks if check.status.value == "failed"]
    summary = f"{len(failed)} of {len(done.checks)} checks failed" if failed else "ready to train"
    verdict = Verdict.NO if failed else Verdict.YES
    facts = {"plan": {"peak_bytes": done.choice.peak, "limit_bytes": done.choice.limit}} if done.choice else {}
    report = Report("train", "preflight", verdict, summary, checks=tuple(done.checks), facts=facts)
    if as_json:
        click.echo(json.dumps({"event": "preflight", **report.to_dict()}, ensure_ascii=False))
    else:
        present.print_text(report)
