"""``envbuilder stacks``: list the stacks, explain one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.table import Table

    from envbuilder.stack.gpu import GpuProfile
    from envbuilder.stack.model import Pin, SourcePart, Stack


@click.group(name="stacks", invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the stacks, or explain every pin of one.

    \b
    Example:
      envbuilder stacks
      envbuilder stacks show p40
    """
    if ctx.invoked_subcommand:
        return
    from envbuilder.stack.loading import load_stack, stack_names

    loaded = [load_stack(name) for name in stack_names()]
    if as_json:
        rows = [{"name": s.name, "gpu": g.title, "capability": g.capability.value, "title": s.title} for s, g in loaded]
        click.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console

    table = _table("stack", "card", "what it is")
    for stack, gpu in loaded:
        table.add_row(stack.name, f"{gpu.title} ({gpu.sm})", stack.title)
    Console().print(table)


@command.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(name: str, as_json: bool) -> None:
    """Explain every pin of a stack: why it is there, and what is commonly believed and wrong.

    \b
    Example:
      envbuilder stacks show p40
    """
    from envbuilder.stack.loading import load_stack

    stack, gpu = load_stack(name)
    if as_json:
        click.echo(json.dumps({"stack": stack.model_dump(mode="json"), "gpu": gpu.model_dump(mode="json")}, indent=2))
        return
    _explain(stack, gpu)


def _explain(stack: Stack, gpu: GpuProfile) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    console = Console(highlight=False)
    console.print(f"[bold]{stack.name}[/]: {escape(stack.title)}")
    console.print(
        f"for {gpu.title}, {gpu.architecture}, capability {gpu.capability.value} ({gpu.sm}), "
        f"drivers up to branch {gpu.driver.last_branch}\n"
    )
    for name, version, why in _pins(stack):
        console.print(f"[bold]{escape(name)}[/] {escape(version)}")
        console.print(Padding(escape(why), (0, 0, 0, 2)))
    believed = [(name, pin.believed) for name, pin in _believed(stack)]
    if believed or gpu.belief:
        console.print("\n[bold]Commonly believed, and wrong[/]")
    for name, text in believed:
        console.print(Padding(f"[bold]{name}[/]: {escape(text)}", (0, 0, 0, 2)))
    for belief in gpu.belief:
        text = f"[bold]“{escape(belief.claim)}”[/] {escape(belief.truth)} [dim]({escape(belief.source)})[/]"
        console.print(Padding(text, (0, 0, 0, 2)))
    if stack.differs:
        console.print("\n[bold]What differs from p40[/]")
        for line in stack.differs:
            console.print(Padding(escape(line), (0, 0, 0, 2)))


def _pins(stack: Stack) -> Iterator[tuple[str, str, str]]:
    """Name, version and reason of everything the stack pins."""
    if stack.debian:
        yield "Debian", stack.debian.point_release, stack.debian.why
    if stack.image:
        yield "base images", f"{stack.image.devel}, {stack.image.runtime}", stack.image.why
    yield "CUDA", f"{stack.cuda.runtime} (nvcc {stack.cuda.toolkit})", _sourced(stack.cuda)
    for name, pin in (stack.conda.packages if stack.conda else {}).items():
        yield f"{name} (conda)", pin.version, _sourced(pin)
    for name, pin in stack.python.packages.items():
        yield name, f"{pin.version} (group {pin.group})" if pin.group else pin.version, _sourced(pin)
    for name, part in stack.sources.items():
        yield f"{name} (source)", f"{part.tag}, {part.commit[:12]}", _sourced(part)
    yield "Python files", f"uploaded before {stack.python.cutoff}", "Later uploads are not considered: they never met."
    yield "compute", f"{stack.compute.dtype}, {stack.compute.attention}", stack.compute.why


def _sourced(part: object) -> str:
    why, source = getattr(part, "why", ""), getattr(part, "source", "")
    return f"{why} ({source})" if source else why


def _believed(stack: Stack) -> list[tuple[str, Pin | SourcePart]]:
    pins: dict[str, Pin | SourcePart] = {
        **(stack.conda.packages if stack.conda else {}),
        **stack.python.packages,
        **stack.sources,
    }
    return [(name, pin) for name, pin in pins.items() if pin.believed]


def _table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
