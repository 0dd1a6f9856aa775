"""``envbuilder data``: a data set into verl's RL Parquet."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from envbuilder.train.convert import SplitResult


@click.command(name="data")
@click.argument("dataset")
@click.option("--from", "source", required=True, type=click.Path(path_type=Path), help="File or folder to read.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for SPLIT.parquet.")
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Model folder: measure prompts in tokens.")
@click.option("--max-prompt", type=click.IntRange(min=1), help="data.max_prompt_length of the run, in tokens.")
@click.option("--long", type=click.Choice(["report", "drop"]), default="report", help="What to do with longer prompts.")
@click.option("--broken", type=click.Choice(["refuse", "skip"]), default="refuse", help="What to do with a broken row.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    dataset: str,
    source: Path,
    out: Path,
    tokenizer: Path | None,
    max_prompt: int | None,
    long: str,
    broken: str,
    as_json: bool,
) -> None:
    """Turn a data set into the Parquet that verl trains on.

    DATASET is a known one (gsm8k) or a mapping file of yours (.toml). Read are JSONL, Parquet, folders that
    save_to_disk wrote, and the hub's layout of them.

    \b
    Example:
      envbuilder data gsm8k --from gsm8k/ --out data/ --tokenizer Qwen2.5-0.5B-Instruct/ --max-prompt 256
    """
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.errors import InputError
    from envbuilder.train.convert import Options, convert
    from envbuilder.train.lengths import PromptTokenizer
    from envbuilder.train.mapping import load_mapping

    if max_prompt and not tokenizer:
        raise InputError("--max-prompt counts tokens", cure="Give --tokenizer with the folder of the model.")
    options = Options(skip_broken=broken == "skip", max_prompt=max_prompt, drop_long=long == "drop")
    mapping = load_mapping(dataset)
    with TerminalProgress() as progress:
        results = convert(source, out, mapping, options, PromptTokenizer(tokenizer) if tokenizer else None, progress)
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results], indent=2))
        return
    for result in results:
        _show(result, max_prompt)


def _show(result: SplitResult, max_prompt: int | None) -> None:
    click.echo(f"{result.name}: {result.rows} rows -> {result.output}")
    if result.broken_count:
        click.echo(f"  {result.broken_count} broken rows left out; the first:")
        for row in result.broken:
            click.echo(f"    {row.place}: {row.why}")
    if result.lengths:
        numbers = result.lengths
        click.echo(
            f"  prompt tokens: min {numbers['min']}, median {numbers['p50']}, 95% {numbers['p95']}, "
            f"99% {numbers['p99']}, max {numbers['max']}"
        )
        if max_prompt:
            fate = f"{result.over_limit_dropped} left out" if result.over_limit_dropped else "kept"
            click.echo(f"  longer than {max_prompt}: {numbers['over_limit']} ({fate})")
