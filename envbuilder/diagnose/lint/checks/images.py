"""Dockerfiles as such: base images that do not exist or have ended, variables out of scope, missing compilers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import card_list, is_pytorch_index, lowest
from envbuilder.diagnose.lint.dockerfile import SETS_CUDA_VERSION
from envbuilder.diagnose.lint.model import Base, Fix, Hit, Recipe, Step
from envbuilder.stack.compat.cuda import distro, toolkit
from envbuilder.stack.compat.images import cuda_images, full_releases, images
from envbuilder.stack.compat.torch_builds import find_build

_NEEDS_COMPILER = ("vllm", "triton", "sglang", "unsloth", "liger-kernel")


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for stage in recipe.stages:
        if stage.parent is None:
            yield from _tag(recipe, stage.base)
            yield from _card(recipe, stage.base)
            yield from _ended(recipe, stage.base, recipe.chain(stage.index))
    yield from _scope(recipe)
    yield from _keys(recipe)
    yield from _compiler(recipe)


def _tag(recipe: Recipe, base: Base) -> Iterator[Hit]:
    if base.image != "nvidia/cuda" or base.digest or "$" in base.text:
        return
    if base.tag in ("", "latest"):
        yield Hit(
            "image-tag-nonexistent",
            base.line,
            (f"FROM {base.text}",),
            {
                "tag": base.text,
                "why": "nvidia/cuda has no tag latest",
                "why_zh": "nvidia/cuda 没有 latest 标签",
                "suggest": "nvidia/cuda:11.8.0-cudnn8-devel-ubuntu22.04",
            },
        )
        return
    match = re.match(r"^(\d+)\.(\d+)(?:\.(\d+))?(.*)$", base.tag)
    if not match:
        return
    short = f"{match.group(1)}.{match.group(2)}"
    rest = match.group(4)
    if match.group(3) is None:
        full = (full_releases(short) or [f"{short}.0"])[-1] if short != "11.8" else "11.8.0"
        suggest = _existing(full, rest)
        yield Hit(
            "image-tag-nonexistent",
            base.line,
            (f"FROM {base.text}",),
            {
                "tag": base.text,
                "suggest": suggest,
                "why": "its tags carry a three-part CUDA version",
                "why_zh": "其标签都写三段式 CUDA 版本",
            },
            fix=_replace(recipe, base, suggest),
        )
        return
    row = cuda_images(f"{short}.{match.group(3)}")
    if row is None or any(k.tag == f"{base.image}:{base.tag}" for k in images().known):
        return
    word = re.search(r"-(cudnn\d*)", rest)
    system = re.search(r"-([a-z]+[\d.]+)$", rest)
    suggest = _existing(f"{short}.{match.group(3)}", rest)
    if word and word.group(1) != row.cudnn:
        yield Hit(
            "image-tag-nonexistent",
            base.line,
            (f"FROM {base.text}",),
            {
                "tag": base.text,
                "suggest": suggest,
                "why": f"the images of this release say {row.cudnn}",
                "why_zh": f"该版本的镜像写作 {row.cudnn}",
            },
            fix=_replace(recipe, base, suggest),
        )
    elif system and system.group(1) not in row.distros:
        yield Hit(
            "image-tag-nonexistent",
            base.line,
            (f"FROM {base.text}",),
            {
                "tag": base.text,
                "suggest": suggest,
                "why": f"this release was not made for {system.group(1)}",
                "why_zh": f"该版本没有 {system.group(1)} 的镜像",
            },
        )


def _existing(full: str, rest: str) -> str:
    """The nearest tag that exists: the release's cuDNN word, a distribution it was made for."""
    row = cuda_images(full)
    word = f"-{row.cudnn}" if row and "cudnn" in rest else ""
    flavour = re.search(r"-(base|runtime|devel)", rest)
    system = re.search(r"-([a-z]+[\d.]+)$", rest)
    wanted = system.group(1) if system and row and system.group(1) in row.distros else "ubuntu22.04"
    ended = distro(wanted)
    if ended and ended.eol:
        wanted = "ubuntu22.04"
    return f"nvidia/cuda:{full}{word}-{flavour.group(1) if flavour else 'devel'}-{wanted}"


def _replace(recipe: Recipe, base: Base, suggest: str) -> Fix | None:
    text = recipe.lines[base.line - 1]
    return Fix(base.line, base.line, (text.replace(base.text, suggest),)) if base.text in text else None


def _card(recipe: Recipe, base: Base) -> Iterator[Hit]:
    card = lowest(recipe)
    row = toolkit(base.cuda) if base.cuda else None
    if row and not row.compiles_for(card.major_minor) and card.major_minor < (8, 0) and base.cuda.split(".")[0] >= "13":
        yield Hit(
            "cuda-too-new-for-card",
            base.line,
            (f"FROM {base.text}",),
            {
                "cuda": base.cuda,
                "card": card_list((card,)),
                "first": row.first_capability,
                "row_source": row.source,
            },
        )
    elif base.torch:
        build = find_build(f"{base.torch}+cu{base.cuda.replace('.', '')}")
        if build and build.refuses(card.major_minor):
            yield Hit(
                "image-torch-no-code",
                base.line,
                (f"FROM {base.text}",),
                {
                    "torch": f"{base.torch}+{build.cuda}",
                    "card": card.title,
                    "sm": card.sm,
                    "arches": build.shown_arches,
                },
            )


def _ended(recipe: Recipe, base: Base, steps: list[Step]) -> Iterator[Hit]:
    row = distro(base.distro) if base.distro else None
    if row is None or not row.eol:
        return
    ppa = next((s for s in steps if "deadsnakes" in s.text), None)
    values = {
        "distro": base.distro,
        "codename": row.codename,
        "eol": row.eol,
        "suggest": base.text.replace(base.distro, "ubuntu22.04") if base.image == "nvidia/cuda" else "ubuntu:22.04",
    }
    if ppa is not None:
        yield Hit("deadsnakes-on-ended-release", ppa.line, (f"FROM {base.text}", ppa.text.splitlines()[0]), values)
    else:
        yield Hit("distribution-ended", base.line, (f"FROM {base.text}",), values)


def _scope(recipe: Recipe) -> Iterator[Hit]:
    """An ARG before FROM that is used after it without being declared again."""
    before = {v.name: v for v in recipe.env if v.kind == "ARG" and v.stage < 0}
    if not before:
        return
    lines = recipe.lines
    for stage in recipe.stages:
        end = next((s.base.line for s in recipe.stages if s.index == stage.index + 1), len(lines) + 1)
        root = recipe.root(stage.index)
        own = {v.name: v.line for v in recipe.env if v.stage == stage.index}
        inherited = {
            v.name
            for v in recipe.env
            if v.stage >= 0 and v.kind == "ENV" and _is_ancestor(recipe, v.stage, stage.index)
        }
        shell = {v.name: v.line for v in recipe.env if v.stage == stage.index and v.kind in ("shell", "export")}
        for name, variable in before.items():
            if name in inherited or name in shell:
                continue
            if name == "CUDA_VERSION" and root is not None and root.image.startswith(SETS_CUDA_VERSION):
                continue
            for number in range(stage.base.line + 1, end):
                text = lines[number - 1]
                if text.lstrip().startswith("#") or re.match(r"^\s*FROM\b", text, re.IGNORECASE):
                    continue
                if (
                    re.search(rf"\$(?:\{{{name}(?![\w:]*:-)[^}}]*\}}|{name}\b)", text)
                    and own.get(name, 1 << 30) > number
                ):
                    yield Hit(
                        "arg-out-of-scope",
                        number,
                        (lines[variable.line - 1].strip(), text.strip()),
                        {"name": name, "from": str(stage.base.line)},
                        fix=Fix(stage.base.line, stage.base.line, (lines[stage.base.line - 1], f"ARG {name}")),
                    )
                    break


def _is_ancestor(recipe: Recipe, ancestor: int, stage: int) -> bool:
    current: int | None = stage
    for _ in range(len(recipe.stages) + 1):
        if current is None:
            return False
        if current == ancestor:
            return True
        current = recipe.stages[current].parent
    return False


def _keys(recipe: Recipe) -> Iterator[Hit]:
    for number, line in enumerate(recipe.lines, start=1):
        if "7fa2af80" in line and not line.lstrip().startswith("#") and not re.search(r"apt-key del|--delete", line):
            yield Hit("apt-key-withdrawn", number, (line.strip(),))


def _compiler(recipe: Recipe) -> Iterator[Hit]:
    """A final stage without a compiler in which something compiles at run time."""
    if not recipe.stages:
        return
    last = recipe.stages[-1]
    base = recipe.root(last.index)
    if base is None or base.flavour not in ("runtime", "base"):
        return
    steps = recipe.chain(last.index)
    has = any(
        s.tool in ("apt", "conda")
        and any(
            re.match(r"^(gcc|g\+\+|build-essential|clang|gxx|cxx-compiler|c-compiler)", r.name) for r in s.requirements
        )
        for s in steps
    )
    if has:
        return
    for step in steps:
        wants = next((r for r in step.requirements if r.name in _NEEDS_COMPILER), None)
        if wants is not None and step.tool == "pip" and step.verb == "install":
            yield Hit(
                "no-compiler-in-final-stage",
                wants.line,
                (f"FROM {base.text}", step.text.splitlines()[0]),
                {"name": wants.name, "flavour": base.flavour, "image": base.text},
            )
            return


def check_index_variables(recipe: Recipe) -> Iterator[Hit]:
    """An index address whose tag comes from a variable nobody sets."""
    for step in recipe.steps:
        for address in step.indexes:
            if (
                is_pytorch_index(address)
                and re.search(r"/whl/cu\$?\{?\w*\}?$", address)
                and address.rstrip("/").endswith("/cu")
            ):
                yield Hit("index-without-tag", step.line, (address,), {"index": address})
