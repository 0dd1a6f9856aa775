"""``envbuilder deploy``: a job file that proves the cards of every host, then trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command(name="deploy")
@click.argument("scheduler", type=click.Choice(["slurm", "kubernetes", "compose"]))
@click.argument("stack")
@click.option("--image", required=True, metavar="REF@DIGEST", help="The image, by digest, as the hosts reach it.")
@click.option("--model", required=True, metavar="DIR", help="The model's folder on the hosts; mounted read-only.")
@click.option("--data", required=True, metavar="DIR", help="Folder of train.parquet; read-only.")
@click.option("--results", required=True, metavar="DIR", help="Folder for reports and checkpoints; written to.")
@click.option("--nodes", type=click.IntRange(1), default=1, show_default=True, help="Hosts; more make one Ray cluster.")
@click.option("--gpus-per-node", type=click.IntRange(1), default=1, show_default=True, help="Cards of each host.")
@click.option("--shm-gib", type=click.IntRange(1), default=8, show_default=True, help="Size of /dev/shm.")
@click.option("--hours", type=click.IntRange(1), default=24, show_default=True, help="When a run is ended.")
@click.option("--interface", default="", metavar="NAME", help="Network interface between the hosts (NCCL, gloo).")
@click.option("--node-label", "labels", multiple=True, metavar="KEY=VALUE", help="kubernetes: only on such nodes.")
@click.option(
    "--override", "overrides", multiple=True, metavar="KEY=VALUE", help="A setting of verl's; wins over ours."
)
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default=Path(), help="Folder for the file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(scheduler: str, stack: str, as_json: bool, out: Path, **given: Any) -> None:
    """Write a job file for SCHEDULER that proves the cards of every host, then trains on them.

    Training starts only when every card of every host was proven. Folders are paths of the hosts; for kubernetes also
    pvc:CLAIM or pvc:CLAIM/FOLDER.

    \b
    Example:
      envbuilder deploy slurm p40-debian --image registry.lab/p40@sha256:... --nodes 2 \\
        --model /data/Qwen2.5-0.5B-Instruct --data /data/gsm8k --results /scratch/run1
      sbatch p40-debian.sbatch
    """
    import json
    from dataclasses import asdict

    from envbuilder.files import write_text
    from envbuilder.publish.deploy.job import Job, folder, image_name, interface, node_labels
    from envbuilder.publish.deploy.rendering import render
    from envbuilder.publish.deploy.training import overrides
    from envbuilder.stack.loading import load_stack

    model, _ = load_stack(stack)
    job = Job(
        stack=model.name,
        image=image_name(given["image"]),
        **{name: folder(given[name], f"--{name}") for name in ("model", "data", "results")},
        overrides=overrides(model, given["nodes"], given["gpus_per_node"], given["overrides"]),
        nodes=given["nodes"],
        gpus=given["gpus_per_node"],
        shm_gib=given["shm_gib"],
        hours=given["hours"],
        interface=interface(given["interface"]),
        node_labels=node_labels(given["labels"]),
    )
    rendered = render(scheduler, job)
    path = out / rendered.filename
    write_text(path, rendered.text)
    if as_json:
        click.echo(json.dumps({"file": str(path), "submit": rendered.submit(path), "job": asdict(job)}, indent=2))
    else:
        click.echo(f"written  {path}\nsubmit   {rendered.submit(path)}")
