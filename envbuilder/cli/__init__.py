"""The command line. One module a command, imported only when that command is asked for."""

from __future__ import annotations

import errno
import signal
import sys
from importlib import import_module

import click

from envbuilder import __version__
from envbuilder.errors import INTERRUPTED, EnvbuilderError, HostError, Place

# name -> (module, one-line help). The help stands here so that `envbuilder --help` imports no command.
COMMANDS = {
    "stacks": ("envbuilder.cli.stacks", "List the stacks, or explain every pin of one."),
    "lock": ("envbuilder.cli.lock", "Resolve a stack into exact files, by name, version, SHA-256 and size."),
    "fetch": ("envbuilder.cli.fetch", "Download every file of a lock, verified, resuming."),
    "bundle": ("envbuilder.cli.bundle", "Pack everything a build needs into one file, for a host without a network."),
    "sources": ("envbuilder.cli.sources", "Ask every source a stack needs whether it answers from here."),
    "audit": ("envbuilder.cli.audit", "Tell which GPUs the CUDA code in files, wheels, folders and images runs on."),
    "render": ("envbuilder.cli.render", "Write Dockerfiles and environment files out of stacks and locks."),
    "image": ("envbuilder.cli.image", "From nothing to a verified image: sources, tools, build, verify on the CPU."),
    "build": ("envbuilder.cli.build", "Build a stack's image out of its lock, without network."),
    "slim": ("envbuilder.cli.slim", "Blank the device code that the target card can never run."),
    "verify": ("envbuilder.cli.verify", "Prove an image on a card, or on a CPU as far as that goes."),
    "push": ("envbuilder.cli.push", "Push a stack's image to a registry, or over ssh to another host's engine."),
    "pull": ("envbuilder.cli.pull", "Pull an image by its digest into this host's engine, verified."),
    "save": ("envbuilder.cli.save", "Write a stack's image to one archive that every engine loads."),
    "load": ("envbuilder.cli.load", "Load an image out of an archive, each byte verified before the engine sees it."),
    "reproduce": ("envbuilder.cli.reproduce", "Rebuild an image from the lock it records, and tell what differs."),
    "sbom": ("envbuilder.cli.sbom", "Name every package in an image, with digest and licence (CycloneDX, SPDX)."),
    "sign": ("envbuilder.cli.sign", "Sign an image in a registry, or make the key for it."),
    "deploy": ("envbuilder.cli.deploy", "Write a job for Slurm, Kubernetes or Compose that proves, then trains."),
    "lint": ("envbuilder.cli.lint", "Find faults in Dockerfiles, requirements, environments, scripts and locks."),
    "explain": ("envbuilder.cli.explain", "Name the cause and the cure of what a log shows."),
    "compat": ("envbuilder.cli.compat", "Tell which builds run on a card, and what to take instead of what cannot."),
    "patch": ("envbuilder.cli.patch", "Change verl's source for an old card, and list or prove every site."),
    "data": ("envbuilder.cli.data", "Turn a data set into the Parquet that verl trains on."),
    "model": ("envbuilder.cli.model", "Get a model at a pinned revision, or check a model folder."),
    "plan": ("envbuilder.cli.plan", "Plan a PPO step's memory on a card: does it fit, what to change first."),
    "train": ("envbuilder.cli.train", "Train in a stack's image: look first, run, watch, resume, diagnose."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported on use; the listing needs only the table above."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The commands in the order of the road."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of ``cmd_name`` and take its ``command``."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 fine or proven, 1 failed or a fault found, 2 wrong use, 3 not enough to tell, "
    "4 a source does not answer, 5 bytes differ from the lock, 6 the host lacks something, 7 a build step failed, "
    "130 interrupted.",
)
@click.version_option(__version__, prog_name="envbuilder")
def group() -> None:
    """Locks, images and proof for NVIDIA cards that everything else has dropped.

    \b
    Example:
      envbuilder stacks
      envbuilder build p40-debian
      envbuilder verify --gpu 0
    """


def main(args: list[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    sys.exit(run(args))


def run(args: list[str] | None = None) -> int:
    """Run the command line; the exit code. A user's mistake is shown as what, where and what to do."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        result = group.main(args=args, prog_name="envbuilder", standalone_mode=False)
    except EnvbuilderError as error:
        show_error(error)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("\ninterrupted; nothing half-written is left behind", err=True)
        return INTERRUPTED
    except SystemExit as left:
        # The reader (head, less) went away: not an error. click answers it with exit 1 of its own.
        if isinstance(left.__context__, OSError) and left.__context__.errno == errno.EPIPE:
            return 0
        raise
    except OSError as error:
        if error.errno is None or error.strerror is None:
            raise
        refused = _refused(error, error.strerror)
        show_error(refused)
        return refused.exit_code
    return result if isinstance(result, int) else 0


def _refused(error: OSError, reason: str) -> HostError:
    """What the system refused (a full disk, a file where a folder must be), for people."""
    cure = "Name another path, or put right the one named here, then run the command again."
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        cure = "Free some space or choose another disk, then run the command again."
    if error.errno in {errno.EACCES, errno.EPERM, errno.EROFS}:
        cure = "Choose a path you may read and write, or run the command as a user who may."
    place = Place(str(error.filename)) if error.filename is not None else None
    return HostError(f"the system refused: {reason.lower()}", place=place, cure=cure)


def _interrupt(*_: object) -> None:
    """Being told to end is an interruption like Ctrl-C: everything is put away on the way out."""
    raise KeyboardInterrupt


def show_error(error: EnvbuilderError) -> None:
    """Print an error to standard error: what is wrong, where, and the cure."""
    where = f"{error.place}: " if error.place and str(error.place) else ""
    click.echo(f"{click.style('error:', fg='red', bold=True)} {where}{error.message}", err=True)
    if error.detail:
        for line in error.detail.rstrip().splitlines():
            click.echo(f"  | {line}", err=True)
    if error.cure:
        click.echo(f"{click.style('do:', bold=True)} {error.cure}", err=True)
