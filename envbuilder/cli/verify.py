"""``envbuilder verify``: run the suite in an image, replay what a host reported, or compare two reports."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from envbuilder.image.proving import Wanted
    from envbuilder.report.model import Report
    from envbuilder.smoke.facts import HostFacts


@click.group(name="verify", invoke_without_command=True)
@click.option("--gpu", default=None, metavar="N", help="The card, counted as nvidia-smi does (default 0).")
@click.option("--device", type=click.Choice(["cuda", "cpu"]), default="cuda", help="cpu: what a CPU can show.")
@click.option("--stack", default=None, help="The stack (default: the first whose image is here).")
@click.option("--image", default=None, metavar="REF", help="The image (default: the stack's own).")
@click.option("--engine", default="auto", help="auto, docker or buildah.")
@click.option("--only", multiple=True, metavar="IDS", help="Run these checks only.")
@click.option("--skip", multiple=True, metavar="IDS", help="Leave these checks out.")
@click.option("--list", "listing", is_flag=True, help="List every check: what it proves, needs, and its time limit.")
@click.option("--trainer", is_flag=True, help="Also run verl.trainer.main_ppo under Ray.")
@click.option("--soak", is_flag=True, help="Also look for memory growth over many PPO steps.")
@click.option("--steps", type=click.IntRange(1), default=None, help="Steps of --trainer and --soak.")
@click.option("--probe", type=click.Path(path_type=Path), default=None, help="Judge what a host reported; run nothing.")
@click.option(
    "--ray", default=None, metavar="ADDRESS", help="Every card of a Ray cluster: HOST:PORT or ray://HOST:PORT."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON (docs/schema/report.schema.json).")
@click.option("--junit", type=click.Path(path_type=Path), default=None, help="Write JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path), default=None, help="Write one self-contained HTML page.")
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> int | None:
    """Prove an image on a card.

    Exit: 0 proven, 1 a check failed, 2 wrong use, 3 not enough to tell (so it is for every --device cpu run: nothing of
    a card was proven).

    \b
    Example:
      envbuilder verify --gpu 0
      envbuilder verify --device cpu --html report.html
      envbuilder verify --gpu 0 --soak --trainer --steps 200
      envbuilder verify --gpu 0 --probe host.json
      envbuilder verify --ray ray://head:10001 --html hosts.html
      envbuilder verify compare mine.json yours.json
      envbuilder verify merge results/verify/*.json
    """
    if ctx.invoked_subcommand:
        return None
    if given["listing"]:
        return _list(given["as_json"])
    if given["steps"] and not (given["trainer"] or given["soak"]):
        raise click.UsageError("--steps is for --trainer and --soak.")
    given["only"], given["skip"] = (_names(given[key]) for key in ("only", "skip"))
    from envbuilder.report.model import Verdict

    if given["probe"]:
        from envbuilder.image.probing import replay_file

        report = replay_file(given["probe"], _indices(given["gpu"]), given["stack"], given["only"], given["skip"])
    elif given["ray"]:
        report = _run_on_cluster(given)
    else:
        report = _run(given)
    _present(report, given)
    if not given["probe"] and report.verdict is Verdict.NO:
        from envbuilder.cli.why import explain_checks

        explain_checks(report)
    sys.exit(report.verdict.exit_code)


@command.command()
@click.argument("first", type=click.Path(path_type=Path))
@click.argument("second", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(first: Path, second: Path, as_json: bool) -> None:
    """Compare two reports: hosts, checks, step times and memory side by side.

    Exit: 0 when every check came out alike, 1 when not.

    \b
    Example:
      envbuilder verify --gpu 0 --json > here.json
      envbuilder verify compare here.json there.json
    """
    from envbuilder.report.compare import compare_reports, print_comparison, read_report

    comparison = compare_reports(read_report(first), read_report(second))
    print_comparison(comparison, first.stem, second.stem, as_json)
    sys.exit(0 if comparison.same_outcome else 1)


@command.command(name="merge")
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--junit", type=click.Path(path_type=Path), default=None, help="Write JUnit XML.")
@click.option("--html", type=click.Path(path_type=Path), default=None, help="Write one self-contained HTML page.")
def merge_reports(reports: tuple[Path, ...], **given: Any) -> None:
    """Merge the reports of many cards: who was proven, who was not, and in what the hosts differ.

    Exit: as verify; one card that failed is a no.

    \b
    Example:
      envbuilder verify merge results/verify/*.json --html hosts.html
    """
    from envbuilder.errors import InputError, Place
    from envbuilder.report.compare import read_report
    from envbuilder.report.merge import card_of, merge

    # A file that is named twice is one card all the same.
    files = {path.resolve(): path for path in reports}
    cards = [card_of(read_report(path), path.stem) for path in files.values()]
    first: dict[str, Path] = {}
    for card, path in zip(cards, files.values(), strict=True):
        uuid = card.passport.get("uuid")
        if uuid and first.setdefault(uuid, path) is not path:
            raise InputError(
                f"this report and {first[uuid]} are of one card ({uuid}), which would count as two",
                place=Place(str(path)),
                cure="Give one report of each card: the one that is to count.",
            )
    report = merge(cards, f"{len(cards)} card(s) of {len({card.host for card in cards})} host(s)")
    _present(report, given)
    sys.exit(report.verdict.exit_code)


def _run_on_cluster(given: dict[str, Any]) -> Report:
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.publish.ray_cluster import prove_cluster, suite
    from envbuilder.report.merge import CardReport

    for option in ("gpu", "stack", "image"):
        if given[option]:
            raise click.UsageError(
                f"--{option} has no meaning with --ray: every card is proven, in the image Ray runs in."
            )
    wanted = suite(
        given["device"],
        given["only"],
        given["skip"],
        trainer=given["trainer"],
        soak=given["soak"],
        steps=given["steps"] or 0,
    )

    def tell(card: CardReport) -> None:
        said = card.report["summary"] if card.report else card.problem
        click.echo(f"{card.name}: {card.status.value}: {said}", err=True)

    with TerminalProgress() as progress:
        progress.stage(f"verify every card of the Ray cluster at {given['ray']}")
        return prove_cluster(given["ray"], wanted, progress, tell)


def _run(given: dict[str, Any]) -> Report:
    from envbuilder.image.choose import choose_engine
    from envbuilder.image.proving import Wanted

    on_gpu = given["device"] == "cuda"
    if not on_gpu and given["gpu"] is not None:
        raise click.UsageError("--gpu names a card; --device cpu uses none.")
    indices = _indices(given["gpu"])
    if len(indices) != 1:
        raise click.UsageError("a run proves one card at a time; several are for --probe.")
    engine = choose_engine(given["engine"])
    name, reference = _image(engine, given["stack"], given["image"])
    facts = None
    if on_gpu:
        from envbuilder.smoke.nvml import collect

        facts = collect()
    wanted = Wanted(
        reference, indices[0] if on_gpu else None, given["only"], given["skip"], given["trainer"], given["soak"],
        given["steps"] or 0,
    )  # fmt: skip
    return _prove(wanted, engine, name, facts)


def prove_cards(engine: Any, image: str, gpu: str) -> Iterator[Report]:
    """Prove ``image`` on the cards that ``gpu`` names, "all" or indices, one after the other; their reports."""
    from envbuilder.image.proving import Wanted
    from envbuilder.smoke.nvml import collect

    facts = collect()
    # A host without a card is told so by the report of its first.
    indices = [card.index for card in facts.cards or ()] or [0] if gpu == "all" else _indices(gpu)
    for index in indices:
        yield _prove(Wanted(image, index), engine, _stack_of(engine, image), facts)


def _prove(wanted: Wanted, engine: Any, stack: str, facts: HostFacts | None) -> Report:
    from envbuilder.cli.progress import TerminalProgress
    from envbuilder.image.probing import manifest_of
    from envbuilder.image.proving import prove

    with TerminalProgress() as progress:
        progress.stage(f"verify {wanted.image} on {'the CPU' if wanted.gpu is None else f'GPU {wanted.gpu}'}")
        return prove(wanted, engine, manifest_of(stack), progress, facts)


def _image(engine: Any, stack: str | None, image: str | None) -> tuple[str, str]:
    """The stack's name and the reference of the image."""
    from envbuilder.errors import HostError
    from envbuilder.image.names import image_tag
    from envbuilder.stack.loading import stack_names

    if image:
        return stack or _stack_of(engine, image), image
    names = [stack] if stack else stack_names()
    for name in names:
        if engine.image(image_tag(name)):
            return name, image_tag(name)
    raise HostError(
        f"there is no image of {' or '.join(names)} in {engine.name}'s store",
        cure="Build one: envbuilder build STACK; or name one with --image.",
    )


def _stack_of(engine: Any, image: str) -> str:
    from envbuilder.stack.loading import stack_names

    found = engine.image(image)
    label: str = found.labels.get("io.envbuilder.stack", "") if found else ""
    return label or stack_names()[0]


def _indices(gpu: str | None) -> list[int]:
    try:
        indices = [int(part) for part in (gpu or "0").split(",")]
        if min(indices) < 0:
            raise ValueError
        return indices
    except ValueError:
        raise click.BadParameter(f"{gpu!r} is no index; nvidia-smi -L shows them.", param_hint="--gpu") from None


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for value in values for name in value.split(",") if name)


def _list(as_json: bool) -> int:
    import json

    from rich.console import Console
    from rich.table import Table

    from envbuilder.smoke.registry import CHECKS

    if as_json:
        rows = [
            {
                "id": s.id,
                "title": s.title,
                "proves": s.proves,
                "limit_s": s.limit_s,
                "needs": sorted(n.value for n in s.needs),
            }
            for s in CHECKS
        ]
        click.echo(json.dumps(rows, indent=2))
        return 0
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "proves that", "needs", "limit"):
        table.add_column(column, overflow="fold")
    for spec in CHECKS:
        table.add_row(spec.id, spec.proves, ", ".join(sorted(n.value for n in spec.needs)), f"{spec.limit_s:.0f} s")
    Console().print(table)
    return 0


def _present(report: Report, given: dict[str, Any]) -> None:
    from envbuilder.report.present import as_json, print_text, write_junit

    # The result first: a file that cannot be written must not cost it.
    if given["as_json"]:
        click.echo(as_json(report), nl=False)
    else:
        print_text(report)
    if given["junit"]:
        write_junit(report, given["junit"])
    if given["html"]:
        from envbuilder.report.html import write_html

        write_html(report, given["html"])
