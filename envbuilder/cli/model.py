"""``envbuilder model``: get a model at a pinned revision, check a model folder."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(name="model")
def command() -> None:
    """Get a model at a pinned revision, or check a folder before any GPU is touched.

    \b
    Example:
      envbuilder model get qwen2.5-0.5b-instruct --out models/
      envbuilder model check models/Qwen2.5-0.5B-Instruct
    """


@command.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--gpu", "gpu_name", default="p40", show_default=True, help="The card.")
@click.option("--pin", help="Hold every file against this pinned model, such as qwen2.5-0.5b-instruct.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def check(ctx: click.Context, folder: Path, gpu_name: str, pin: str | None, as_json: bool) -> None:
    """Check config, shards, tokenizer, chat template and dtype of a model folder.

    \b
    Example:
      envbuilder model check models/Qwen2.5-0.5B-Instruct --pin qwen2.5-0.5b-instruct
    """
    from envbuilder.report import present
    from envbuilder.stack.gpu import load_gpu
    from envbuilder.train.known_models import load_known_model
    from envbuilder.train.modelcheck import check_model

    report = check_model(folder, load_gpu(gpu_name), load_known_model(pin) if pin else None)
    if as_json:
        click.echo(present.as_json(report), nl=False)
    else:
        present.print_text(report)
    ctx.exit(report.verdict.exit_code)


@command.command()
@click.argument("name")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Where the model's folder goes.")
def get(name: str, out: Path) -> None:
    """Fetch a model at its pinned revision, resuming and verified. HF_ENDPOINT names a mirror of the hub.

    \b
    Example:
      HF_ENDPOINT=https://mirror.example envbuilder model get qwen2.5-0.5b-instruct --out models/
    """
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.train.known_models import load_known_model
    from envbuilder.train.modelget import get_model

    model = load_known_model(name)
    with TerminalProgress() as progress:
        folder = get_model(model, out, progress)
    click.echo(f"{folder}: {model.repository} at {model.revision}, every file verified")
