"""Everything that can be known before a GPU is touched, looked at in one go: all problems are told at once."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from envbuilder.errors import EnvbuilderError, HostError, InputError, Place
from envbuilder.image.engine import Engine, ImageInfo
from envbuilder.image.ownership import IMAGE_USER
from envbuilder.report import Check, Severity, Status
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judged import JUDGED, Case
from envbuilder.smoke.manifest import Manifest
from envbuilder.smoke.replay import pick, to_check
from envbuilder.smoke.verl_overrides import Override
from envbuilder.stack.gpu import GpuProfile
from envbuilder.stack.model import Stack
from envbuilder.train.checkpoints import KEPT, checkpoint_bytes
from envbuilder.train.choosing import Choice, choose, what_would_fit
from envbuilder.train.datacheck import DataSet, check_data, find_data
from envbuilder.train.decoder_config import DecoderConfig, read_decoder_config
from envbuilder.train.lengths import PromptTokenizer
from envbuilder.train.modelcheck import check_model
from envbuilder.train.outfolder import OutFolder
from envbuilder.train.plan import GIB
from envbuilder.train.rewards import check_reward_file, without_reward
from envbuilder.train.script import render
from envbuilder.train.settings import Paths, Sizes, Wanted, overrides

T = TypeVar("T")
_JUDGED = ("gpu", "driver", "card")


@dataclass
class Prepared:
    """What was looked at, and what came of it as far as it could be made."""

    checks: list[Check] = field(default_factory=list)
    choice: Choice | None = None
    data: DataSet | None = None
    sizes: Sizes | None = None
    rows: list[Override] = field(default_factory=list)
    script: str = ""
    image: ImageInfo | None = None
    card: Card | None = None

    @property
    def ready(self) -> bool:
        """Whether nothing failed."""
        return all(check.status is Status.PASSED for check in self.checks)

    def look(self, name: str, title: str, proves: str, judge: Callable[[], tuple[T, str]]) -> T | None:
        """One check: ``judge`` gives a result and a sentence, or raises what the user can act on."""
        try:
            result, told = judge()
        except EnvbuilderError as error:
            where = f"{error.place}: " if error.place and str(error.place) else ""
            self.checks.append(
                Check(name, title, proves, Status.FAILED, message=where + error.message, cure=error.cure or "")
            )
            return None
        self.checks.append(Check(name, title, proves, Status.PASSED, message=told))
        return result


def prepare(wanted: Wanted, stack: Stack, gpu: GpuProfile) -> Prepared:
    """Model, plan, data, reward, overrides and script: what needs neither an image nor a card."""
    done = Prepared()
    done.look("model", "model", "the model is complete and fits its tokenizer", lambda: _model(wanted, gpu))
    config = done.look("plan", "memory plan", "the run fits the card", lambda: _plan(done, wanted, stack, gpu))
    done.data = done.look("data", "data", "verl can read the data", lambda: _data(wanted))
    if done.data is not None:
        data = done.data
        done.look("reward", "reward", "every row has a reward function", lambda: _reward(wanted, data))
    done.sizes = _sizes(wanted, done)
    if done.sizes is not None and config is not None:
        sizes = done.sizes
        done.look(
            "overrides",
            "overrides",
            "verl has and reads every one",
            lambda: _overrides(done, wanted, sizes, stack, gpu),
        )
    return done


def look_at_host(
    done: Prepared, wanted: Wanted, out: OutFolder, engine: Callable[[], Engine], reference: str, manifest: Manifest,
    facts: HostFacts | None,
) -> Engine | None:  # fmt: skip
    """Out folder, disk, engine, image and card, added to ``done``; the engine. ``facts`` is None for a CPU run."""
    done.look("out", "out folder", "checkpoints can be written", lambda: _out(out))
    done.look("files", "files", "the container can read what it is given", lambda: _files(done, wanted, out))
    done.look("disk", "disk", "the checkpoints fit", lambda: _disk(done, wanted, out))
    chosen = done.look("engine", "engine", "something can run the image", lambda: _engine(engine))
    if chosen is not None:
        done.image = done.look(
            "image", "image", "the stack's image is there", lambda: _image(chosen, reference, wanted.stack)
        )
    if facts is not None and wanted.gpu is not None:
        _card(done, wanted.gpu, facts, manifest)
    return chosen


def _model(wanted: Wanted, gpu: GpuProfile) -> tuple[None, str]:
    report = check_model(wanted.model, gpu)
    faults = [f for f in report.findings if f.severity is Severity.ERROR]
    if faults:
        raise InputError("; ".join(f"{f.title} ({f.cause})" for f in faults), cure=faults[0].cure)
    return None, report.summary


def _plan(done: Prepared, wanted: Wanted, stack: Stack, gpu: GpuProfile) -> tuple[DecoderConfig, str]:
    if wanted.micro_batch is not None and wanted.batch % wanted.micro_batch:
        raise InputError(
            f"a batch of {wanted.batch} is not made of micro batches of {wanted.micro_batch}",
            cure="Give a --micro-batch that divides --batch.",
        )
    model = read_decoder_config(wanted.model)
    attention = stack.compute.attention
    done.choice = choice = choose(model, wanted, gpu, attention)
    if wanted.gpu is None:
        return model, f"{choice.told}; a CPU run is not held to the card's memory"
    if not choice.fits:
        ways = what_would_fit(model, wanted, gpu, attention)
        raise InputError(
            f"it does not fit a {gpu.title}: {choice.summary} at the least",
            cure=f"These would fit: {'; '.join(ways)}." if ways else "Take a smaller model.",
        )
    return model, choice.summary


def _data(wanted: Wanted) -> tuple[DataSet, str]:
    data = find_data(wanted.data)
    try:
        tokenizer = PromptTokenizer(wanted.model)
    except InputError:
        tokenizer = None  # the model check tells it
    check_data(data, tokenizer, wanted.prompt)
    if data.usable < wanted.batch:
        raise InputError(
            f"{data.usable} of {data.rows} rows have a prompt of at most {wanted.prompt} tokens: not one batch of "
            f"{wanted.batch}",
            place=Place(str(data.train)),
            cure=f"Give --prompt {data.lengths['max']}."
            if data.lengths.get("over_limit")
            else "Give a smaller --batch.",
        )
    told = f"{data.rows} rows"
    if over := data.lengths.get("over_limit"):
        told += (
            f"; {over} with a prompt over {wanted.prompt} tokens are left out (the longest has {data.lengths['max']})"
        )
    return data, told


def _reward(wanted: Wanted, data: DataSet) -> tuple[None, str]:
    if wanted.reward is not None:
        check_reward_file(wanted.reward, wanted.reward_name)
        return None, f"{wanted.reward_name} of {wanted.reward}"
    if unknown := without_reward(data.sources):
        raise InputError(
            f"verl has no reward function for the data source {', '.join(map(repr, unknown))}",
            place=Place(str(data.train), field="data_source"),
            cure="Give your own with --reward FILE[:FUNCTION].",
        )
    return None, f"verl's own for {', '.join(data.sources)}"


def _sizes(wanted: Wanted, done: Prepared) -> Sizes | None:
    if done.choice is None or done.data is None:
        return None
    per_epoch = done.data.usable // wanted.batch
    steps = wanted.steps or per_epoch
    setting = done.choice.setting
    return Sizes(setting.batch, setting.checkpointing, steps, -(-steps // per_epoch))


def _overrides(
    done: Prepared, wanted: Wanted, sizes: Sizes, stack: Stack, gpu: GpuProfile
) -> tuple[None, str]:  # fmt: skip
    from envbuilder.diagnose.lint.engine import lint_text

    assert done.data is not None
    inside = Paths()
    paths = Paths(validation=inside.train.replace("train.parquet", done.data.validation.name))
    done.rows = overrides(wanted, sizes, paths, stack.compute.dtype)
    done.script = render(done.rows, stack.name, gpu.title, wanted.device, paths)
    findings = lint_text("train.sh", done.script, kind="script").findings
    if findings:
        raise InputError(
            "; ".join(f"{f.title}: {', '.join(f.evidence)}" for f in findings), cure=findings[0].cure,
            place=Place(field="--set"),
        )  # fmt: skip
    return None, f"{len(done.rows)} overrides of verl {stack.python.packages['verl'].version}"


def _disk(done: Prepared, wanted: Wanted, out: OutFolder) -> tuple[None, str]:
    """Room for one checkpoint more than verl keeps: after a resume, the one gone on from is beside its own two."""
    model = read_decoder_config(wanted.model)
    one = checkpoint_bytes(model.causal_lm, model.value_model)
    there = sum(file.stat().st_size for file in out.checkpoints.rglob("*") if file.is_file())
    saves = -(-done.sizes.steps // wanted.save_every) if done.sizes else KEPT + 1
    needed = max(0, min(KEPT + 1, saves) * one - there)
    nearest: Path = out.path
    while not nearest.exists():
        nearest = nearest.parent
    free = shutil.disk_usage(nearest).free
    if free < needed:
        raise HostError(
            f"{free / 1e9:.1f} GB are free and the checkpoints take {needed / 1e9:.1f} GB", place=Place(str(out.path)),
            cure="Free some space or give another --out.",
        )  # fmt: skip
    return None, f"a checkpoint takes {one / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"


def _files(done: Prepared, wanted: Wanted, out: OutFolder) -> tuple[None, str]:
    """Mounted they can be, and read by the user the container runs as (``envbuilder.image.ownership``)."""
    files = [file for file in wanted.model.iterdir() if file.is_file()] if wanted.model.is_dir() else []
    files += [done.data.train, done.data.validation] if done.data else []
    files += [wanted.reward] if wanted.reward and wanted.reward.is_file() else []
    paths = [path.resolve() for path in (*files, out.path)]
    if odd := next((path for path in paths if ":" in str(path)), None):
        raise InputError("a path with a colon cannot be mounted", place=Place(str(odd)), cure="Rename or move it.")
    model = [file.resolve() for file in files if file.parent == wanted.model]
    if twice := next((path for path in model if model.count(path) > 1), None):
        raise InputError(
            "two names in the model's folder are links to one file", place=Place(str(twice)),
            cure="Copy the folder with its files in place of links: cp -rL.",
        )  # fmt: skip
    user = os.geteuid()
    if user == 0:
        owner = out.checkpoints.stat().st_uid if out.checkpoints.is_dir() else 0
        user = owner or IMAGE_USER[0]
    if closed := [path for path in paths[:-1] if not _may_read(path, user)]:
        raise InputError(
            f"{len(closed)} file{'s' if len(closed) > 1 else ''} cannot be read by the container's user ({user})",
            place=Place(str(closed[0])),
            cure="Let everybody read them: chmod a+r FILE.",
        )
    return None, f"{len(paths) - 1} files, read as user {user}"


def _may_read(path: Path, user: int) -> bool:
    state = path.stat()
    return bool(state.st_mode & (stat.S_IRUSR if state.st_uid == user else stat.S_IROTH))


def _out(out: OutFolder) -> tuple[None, str]:
    out.check()
    return None, str(out.path)


def _engine(engine: Callable[[], Engine]) -> tuple[Engine, str]:
    chosen = engine()
    return chosen, chosen.version()


def _image(engine: Engine, reference: str, stack: str) -> tuple[ImageInfo, str]:
    image = engine.image(reference)
    if image is None:
        raise HostError(
            f"there is no image {reference!r} in {engine.name}'s store",
            cure=f"Build it: envbuilder build {stack}. Or name another with --image.",
        )
    return image, f"{image.reference} {image.digest}"


def _card(done: Prepared, index: int, facts: HostFacts, manifest: Manifest) -> None:
    """Is the card there, is it the stack's, and is enough of it free?"""

    def chosen() -> tuple[Card, str]:
        card = pick(facts, [index])[0]
        case = Case(facts, card, manifest)
        for judged in JUDGED:
            if judged.id in _JUDGED and (facts.cards or not judged.needs_card):
                check = to_check(judged, judged.judge(case))
                if check.status is Status.FAILED:
                    raise HostError(check.message, cure=check.cure)
        return card, card.label

    def free(card: Card) -> tuple[None, str]:
        if card.memory_mib is None or card.memory_used_mib is None or done.choice is None:
            return None, "the driver does not tell"
        left = (card.memory_mib - card.memory_used_mib) * 2**20
        users = f" It is used by {', '.join(card.processes)}." if card.processes else ""
        if done.choice.fits and left < done.choice.peak:
            raise HostError(
                f"{left / GIB:.1f} GiB of the card are free, the run needs {done.choice.peak / GIB:.1f}.{users}",
                cure="End what uses the card, or name another with --gpu.",
            )
        return None, f"{left / GIB:.1f} GiB free.{users}"

    card = done.look("card", "card", "the card is the stack's", chosen)
    if card is not None:
        done.card = card
        done.look("free", "card's memory", "enough of the card is free", lambda: free(card))
