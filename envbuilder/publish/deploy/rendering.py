"""A job as the file of a scheduler: Slurm, Kubernetes or Docker Compose."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from envbuilder import data
from envbuilder.errors import InputError, Place
from envbuilder.publish.deploy import quoting
from envbuilder.publish.deploy.job import Folder, ImageName, Job

RAY_PORT = 6379
# The image's unprivileged user (templates/*.Dockerfile.j2).
_USER = 1000


@dataclass(frozen=True)
class Rendered:
    """A job file: its name, its text, and the command that submits it, in two halves around the file's path."""

    filename: str
    text: str
    command: tuple[str, ...]
    arguments: tuple[str, ...] = ()

    def submit(self, path: Path) -> str:
        """The command, quoted for a shell, that submits the file at ``path``."""
        return shlex.join((*self.command, str(path), *self.arguments))


def render(scheduler: str, job: Job) -> Rendered:
    """The file for ``scheduler`` (a key of SCHEDULERS). Raises InputError for what that scheduler cannot do."""
    return SCHEDULERS[scheduler](job)


def _slurm(job: Job) -> Rendered:
    _want_paths(job, "Slurm")
    for name, folder in _folders(job).items():
        if set(folder.path) & set(",:\n"):
            raise InputError(
                f"{folder.path!r} holds a comma, a colon or a newline, which no container runner of Slurm's can mount",
                place=Place(field=f"--{name}"),
                cure="Give a path without one, such as a link to this one.",
            )
    text = _fill("slurm.sh.j2", job, enroot=_enroot(job.image), launch=_launch(job), trainer=_trainer(job))
    return Rendered(f"{job.stack}.sbatch", text, ("sbatch",))


def _kubernetes(job: Job) -> Rendered:
    head = ["--head", f"{job.name}-0.{job.name}", "--rank-from", "JOB_COMPLETION_INDEX"] if job.nodes > 1 else []
    text = _fill("kubernetes.yaml.j2", job, launch=[*_launch(job, head), "--", *_trainer(job)])
    return Rendered(f"{job.stack}.kubernetes.yaml", text, ("kubectl", "apply", "-f"))


def _compose(job: Job) -> Rendered:
    _want_paths(job, "Compose")
    if job.nodes > 1:
        raise InputError(
            "Compose runs on one host",
            place=Place(field="--nodes"),
            cure="Use slurm or kubernetes; for hosts without either, docs/hosts.md starts Ray by hand.",
        )
    text = _fill("compose.yaml.j2", job, launch=[*_launch(job), "--", *_trainer(job)])
    return Rendered(f"{job.stack}.compose.yaml", text, ("docker", "compose", "-f"), ("run", "--rm", "train"))


SCHEDULERS: dict[str, Callable[[Job], Rendered]] = {"slurm": _slurm, "kubernetes": _kubernetes, "compose": _compose}


def _fill(template: str, job: Job, **more: object) -> str:
    import jinja2

    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - not HTML; only_quoted refuses a value that nothing quoted
        finalize=quoting.only_quoted,
    )
    for name in ("yaml", "kubernetes", "compose", "shell", "plain", "as_is"):
        environment.filters[name] = getattr(quoting, name)
    text = data.find("templates/deploy", template).read_text(encoding="utf-8")
    return environment.from_string(text).render(
        job=job,
        reference=job.image.reference,
        folders=_folders(job),
        verify=["python3", "-m", "envbuilder.smoke.cards", "--count", str(job.gpus), "--reports", "/results/verify"],
        user=_USER,
        **more,
    )


def _launch(job: Job, options: Sequence[str] = ()) -> list[str]:
    """This host's part of Ray, before what it runs."""
    hosts = ["--hosts", str(job.nodes), "--cards", str(job.gpus), "--port", str(RAY_PORT)]
    return ["python3", "-m", "envbuilder.smoke.ray_host", *hosts, *options]


def _trainer(job: Job) -> list[str]:
    return ["python3", "-m", "envbuilder.smoke.launch", *job.overrides]


def _folders(job: Job) -> dict[str, Folder]:
    """The mounts by where they lie in the container; the last alone can be written."""
    return {"model": job.model, "data": job.data, "results": job.results}


def _want_paths(job: Job, scheduler: str) -> None:
    for name, folder in _folders(job).items():
        if folder.claim:
            raise InputError(
                f"{scheduler} knows no claims", place=Place(field=f"--{name}"), cure="Give a path of the hosts."
            )
    if job.node_labels:
        raise InputError(
            f"{scheduler} knows no labels of nodes",
            place=Place(field="--node-label"),
            cure="They are for kubernetes; sbatch takes --constraint and --partition.",
        )


def _enroot(image: ImageName) -> str:
    """The image as enroot names it: the registry before ``#``, the digest where a tag would stand."""
    return f"{image.registry}#{image.path}:{image.digest}" if image.registry else f"{image.path}:{image.digest}"
