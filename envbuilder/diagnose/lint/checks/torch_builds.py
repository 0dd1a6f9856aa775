"""PyTorch builds: do they exist, do they hold code for the card, do torch and its family fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import Version

from envbuilder.diagnose.lint.checking import (
    TORCH_FAMILY,
    gpu_image,
    is_pytorch_index,
    lowest,
    needed,
    tag_of_index,
    torch_tag,
)
from envbuilder.diagnose.lint.model import Base, Fix, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.cards import Card
from envbuilder.stack.compat.packages import builds_for_torch, built_for, floor
from envbuilder.stack.compat.torch_builds import (
    builds_for,
    exists,
    find_build,
    release,
    releases,
    tags_for,
    torch_builds,
)

GPU_PACKAGES = frozenset(
    {
        "flash-attn",
        "vllm",
        "verl",
        "apex",
        "deepspeed",
        "xformers",
        "bitsandbytes",
        "sglang",
        "cupy-cuda11x",
        "cupy-cuda12x",
    }
)
# Mirrors of the default index; they serve no local versions.
_MIRROR = re.compile(
    r"(tuna\.tsinghua|aliyun|ustc|douban|cloud\.tencent|huaweicloud|163\.com|sjtug?|bfsu|nju)[\w.-]*[/\w-]*/simple"
)


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for base, steps in recipe.environments():
        for step in steps:
            if step.tool == "pip" and step.verb in ("install", "download", "wheel", "lock", "sync"):
                for requirement in step.requirements:
                    if requirement.name == "torch":
                        yield from _torch(recipe, base, steps, step, requirement)
                yield from _family(step)
                yield from _floors(recipe, step)
            elif step.tool == "conda":
                yield from _floors(recipe, step)
        yield from _built_for(steps)
        yield from _cpu(base, steps)


def _torch(recipe: Recipe, base: Base | None, steps: list[Step], step: Step, torch: Requirement) -> Iterator[Hit]:
    tag = torch_tag(torch, step)
    if torch.version and "$" not in torch.version:
        if torch.specifier.startswith("==="):
            return
        yield from _pair(recipe, step, torch, tag)
        yield from _index(recipe, step, torch)
        if tag:
            yield from _code(recipe, step, torch, tag)
        if not torch.local:
            yield from _order(steps, step, torch)
    elif not torch.version and not torch.url:
        yield from _open(recipe, base, steps, step, torch)


def _pair(recipe: Recipe, step: Step, torch: Requirement, tag: str) -> Iterator[Hit]:
    """A build that was never published."""
    if not tag.startswith("cu") or exists(torch.number, tag) is not False:
        return
    card = lowest(recipe)
    row = release(torch.number)
    good = tags_for(torch.number, card.major_minor)
    yield Hit(
        "torch-build-nonexistent",
        torch.line,
        (torch.raw,),
        {
            "build": f"{torch.number}+{tag}",
            "tags": ", ".join(row.tags if row else ()),
            "good": ", ".join(good),
            "card": card.title,
            "sm": card.sm,
        },
    )


def _index(recipe: Recipe, step: Step, torch: Requirement) -> Iterator[Hit]:
    """A local tag that the only index given does not serve."""
    tags = [tag_of_index(u) for u in step.indexes if is_pytorch_index(u)]
    named = [t for t in tags if t]
    if torch.local.startswith("cu") and named and torch.local not in named:
        yield Hit(
            "torch-tag-not-on-index",
            torch.line,
            (torch.raw, *step.indexes),
            {"tag": torch.local, "index_tag": named[0]},
        )
    elif torch.local.startswith("cu") and not named and step.verb != "lock" and _nowhere(recipe, step):
        yield Hit("torch-tag-without-index", torch.line, (torch.raw, *step.indexes), {"tag": torch.local})


def _nowhere(recipe: Recipe, step: Step) -> bool:
    """Whether a command has no index that serves local versions: none named, or only a mirror of the default one.

    A requirements file says nothing of where its versions come from: that is for the settings of whoever installs it.
    """
    if step.extra_index or step.find_links or "no-index" in step.flags or _settings(recipe, step):
        return False
    if step.index_url:
        return bool(_MIRROR.search(step.index_url))
    return bool(step.argv) and not step.files


def _settings(recipe: Recipe, step: Step) -> bool:
    """Whether pip's or uv's settings may name a further index."""
    names = (
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_FIND_LINKS",
        "PIP_CONFIG_FILE",
        "UV_INDEX",
        "UV_EXTRA_INDEX_URL",
        "UV_TORCH_BACKEND",
        "UV_DEFAULT_INDEX",
    )
    return any(name in step.env for name in names) or bool(
        re.search(r"pip\.conf|pip3? config|uv\.toml", recipe.text) or "torch-backend" in step.options
    )


def _code(recipe: Recipe, step: Step, torch: Requirement, tag: str) -> Iterator[Hit]:
    """A build without code for a card."""
    for card in recipe.cards:
        row = find_build(f"{torch.number}+{tag}") or (find_build(torch.number) if not torch.local else None)
        if row is None or row.cuda not in (tag, "cu13") or not row.refuses(card.major_minor):
            continue
        good = tags_for(torch.number, card.major_minor)
        newest = _newest_build(card.major_minor)
        yield Hit(
            "torch-build-no-code",
            torch.line,
            (torch.raw, *step.indexes),
            {
                "build": f"{torch.number}+{row.cuda}",
                "tag": row.cuda,
                "card": card.title,
                "sm": card.sm,
                "arches": row.shown_arches,
                "needed": needed(card),
                "needed_zh": needed(card, "或"),
                "row_source": row.source,
                "good": ", ".join(f"{torch.number}+{t}" for t in good),
                "newest": "" if good else newest,
                "ends": _expiry(good),
                "ends_zh": _expiry(good, "{tag} 构建止于 torch {last}"),
            },
        )
        return


def _expiry(tags: list[str], text: str = "{tag} builds end with torch {last}") -> str:
    """Where the tags end, as the table says: ``cu126 builds end with torch 2.14.0``."""
    ends = {row.cuda: row.torch[-1] for row in torch_builds() if row.last}
    return ", ".join(text.format(tag=tag, last=ends[tag]) for tag in tags if tag in ends)


def _open(recipe: Recipe, base: Base | None, steps: list[Step], step: Step, torch: Requirement) -> Iterator[Hit]:
    """torch without an exact version: what the newest release is decides."""
    if recipe.kind in ("pyproject", "python-lock") or step.constraints or step.options.get("constraint"):
        return
    if base is not None and base.torch and not torch.specifier and "upgrade" not in step.flags:
        return
    if "no-index" in step.flags or step.find_links or step.verb == "uninstall":
        return
    before = [r for s in steps[: steps.index(step)] for r in s.requirements if r.name == "torch" and r.version]
    if before and step.tool == "pip":
        # What happens to that pin is for installs.py to say.
        return
    card = lowest(recipe)
    if any(is_pytorch_index(u) for u in step.indexes) or "$" in step.index_url:
        yield from _open_on_index(step, torch, card)
        return
    admitted = [r for r in releases() if torch.admits(r.torch)] if torch.specifier else list(releases())
    if not admitted:
        return
    newest = admitted[-1]
    row = find_build(newest.torch)
    if row is None or not row.refuses(card.major_minor):
        return
    yield Hit(
        "torch-unpinned",
        torch.line,
        (torch.raw,),
        {
            "newest": f"{newest.torch}",
            "build": row.cuda,
            "card": card.title,
            "sm": card.sm,
            "needed": needed(card),
            "needed_zh": needed(card, "或"),
            "arches": row.shown_arches,
            "take": _newest_build(card.major_minor),
        },
    )


def _open_on_index(step: Step, torch: Requirement, card: Card) -> Iterator[Hit]:
    """torch without an exact version from a PyTorch index none of whose builds runs on the card."""
    tag = next((tag_of_index(u) for u in step.indexes if is_pytorch_index(u)), "")
    rows = [row for row in torch_builds() if row.cuda == tag]
    if rows and all(row.refuses(card.major_minor) for row in rows):
        values = {
            "build": f"(newest)+{tag}",
            "tag": tag,
            "card": card.title,
            "sm": card.sm,
            "arches": rows[-1].shown_arches,
            "needed": needed(card),
            "needed_zh": needed(card, "或"),
            "newest": _newest_build(card.major_minor),
            "row_source": rows[-1].source,
        }
        yield Hit("torch-build-no-code", torch.line, (torch.raw, *step.indexes), values)


def _newest_build(capability: tuple[int, int]) -> str:
    found = builds_for(capability)
    newest = max(found, key=lambda build: Version(build[0]), default=None)
    return f"{newest[0]}+{newest[1]}" if newest else ""


def _order(steps: list[Step], step: Step, torch: Requirement) -> Iterator[Hit]:
    """A pin without +cuNNN from an ordinary index, in a file that elsewhere says which CUDA build is meant."""
    if any(is_pytorch_index(u) for u in step.indexes) or "$" in step.index_url or torch.url or step.files:
        return
    row = release(torch.number)
    if row is None or not row.default_tag:
        return
    mates = {r.local for r in step.requirements if r.name in TORCH_FAMILY and r.local.startswith("cu")}
    mates.discard(row.default_tag)
    if mates:
        values = {"number": torch.number, "default": row.default_tag, "tag": min(mates), "line": str(torch.line)}
        yield Hit("torch-pin-without-tag", torch.line, (torch.raw, *sorted(mates)), values)
        return
    for other in steps:
        meant = {tag_of_index(u) for u in other.indexes if is_pytorch_index(u)}
        meant |= {r.local for r in other.requirements if r.local.startswith("cu")}
        wanted = next((t for t in sorted(meant) if t.startswith("cu") and t != row.default_tag), "")
        if other is not step and wanted:
            yield Hit(
                "torch-pin-without-tag",
                torch.line,
                (torch.raw, other.text.splitlines()[0]),
                {
                    "number": torch.number,
                    "default": row.default_tag,
                    "tag": wanted,
                    "line": str(other.line),
                },
            )
            return


def _family(step: Step) -> Iterator[Hit]:
    """torchvision and torchaudio of another release, or of another CUDA build."""
    torch = step.get("torch")
    if torch is None or not torch.version or "$" in torch.version:
        return
    row = release(torch.number)
    for name in ("torchvision", "torchaudio", "triton"):
        member = step.get(name)
        if member is None or not member.version or "$" in member.version:
            continue
        wanted = getattr(row, name, "") if row else ""
        if wanted and member.number != wanted:
            fix = None
            if member.raw.startswith(name) and f"=={member.number}" in member.raw and step.argv == []:
                fix = Fix(member.line, member.line, (member.raw.replace(f"=={member.number}", f"=={wanted}"),))
            yield Hit(
                "torch-family-mismatch",
                member.line,
                (torch.raw, member.raw),
                {
                    "name": name,
                    "version": member.number,
                    "torch": torch.number,
                    "wanted": wanted,
                },
                fix=fix,
            )
        elif name != "triton" and torch.local and member.local and member.local != torch.local:
            yield Hit(
                "torch-family-tags-differ",
                member.line,
                (torch.raw, member.raw),
                {
                    "name": name,
                    "tag": member.local,
                    "torch_tag": torch.local,
                },
            )


def _floors(recipe: Recipe, step: Step) -> Iterator[Hit]:
    """Packages that need a newer card in every version, or in the one pinned."""
    if step.verb == "uninstall":
        return
    card = lowest(recipe)
    for requirement in step.requirements:
        # triton comes with every torch and does no harm until something compiles with it.
        if requirement.name in ("", "triton"):
            continue
        row = floor(requirement.name, requirement.number)
        if row is None or card.major_minor >= row.major_minor:
            continue
        if row.versions and not requirement.version:
            continue
        yield Hit(
            "package-needs-newer-card",
            requirement.line,
            (requirement.raw,),
            {
                "title": row.title,
                "name": row.name,
                "minimum": row.minimum,
                "card": card.title,
                "capability": card.capability,
                "instead": row.instead_en,
                "instead_zh": row.instead_zh,
                "row_source": row.source,
            },
        )


def _built_for(steps: list[Step]) -> Iterator[Hit]:
    """A package that was built for another torch release than the one pinned."""
    torch: Requirement | None = None
    for step in steps:
        for requirement in step.requirements:
            if requirement.name == "torch" and requirement.version and "$" not in requirement.version:
                torch = requirement
    if torch is None:
        return
    for step in steps:
        for requirement in step.requirements:
            if requirement.conda or "no-deps" in step.flags:
                continue
            row = built_for(requirement.name, requirement.number)
            if row and row.torch != torch.number and requirement.version:
                yield Hit(
                    "built-for-another-torch",
                    requirement.line,
                    (torch.raw, requirement.raw),
                    {
                        "name": requirement.name,
                        "version": requirement.number,
                        "built_for": row.torch,
                        "torch": torch.number,
                        "good": ", ".join(builds_for_torch(requirement.name, torch.number)),
                    },
                )


def _cpu(base: Base | None, steps: list[Step]) -> Iterator[Hit]:
    """A CPU build in what is plainly meant for a GPU."""
    names = {r.name for step in steps for r in step.requirements}
    if not (gpu_image(base) or names & GPU_PACKAGES):
        return
    for step in steps:
        for requirement in step.requirements:
            if requirement.name in TORCH_FAMILY and (
                requirement.local == "cpu" or (step.index_url and tag_of_index(step.index_url) == "cpu")
            ):
                yield Hit(
                    "torch-from-cpu-index",
                    requirement.line,
                    (requirement.raw, *step.indexes),
                    {"name": requirement.name},
                )
                return
