"""Stack and target files: contradictions between what they name, and what the card cannot run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envbuilder.diagnose.lint.checking import lowest
from envbuilder.diagnose.lint.checks.architectures import arch_list
from envbuilder.diagnose.lint.dockerfile import base_image
from envbuilder.diagnose.lint.model import Hit, Recipe
from envbuilder.stack.compat.cuda import last_branch, toolkit
from envbuilder.stack.compat.packages import floor
from envbuilder.stack.compat.torch_builds import find_build, tags_for

# Names of packages on the Python index that a stack of this kind lists.
KNOWN_NAMES = (
    "torch",
    "torchvision",
    "torchaudio",
    "triton",
    "verl",
    "vllm",
    "sglang",
    "ray",
    "transformers",
    "accelerate",
    "datasets",
    "tensordict",
    "peft",
    "hydra-core",
    "numpy",
    "pyarrow",
    "pandas",
    "apex",
    "flash-attn",
    "xformers",
    "bitsandbytes",
    "deepspeed",
    "wandb",
    "codetiming",
    "torchdata",
    "liger-kernel",
    "flashinfer-python",
    "transformer-engine",
    "ninja",
    "packaging",
    "setuptools",
    "wheel",
    "cuda",
    "cudnn",
    "python",
    *(
        f"nvidia-{n}-cu{m}"
        for m in (11, 12, 13)
        for n in (
            "cudnn",
            "cublas",
            "cuda-runtime",
            "cuda-nvrtc",
            "cuda-cupti",
            "cufft",
            "curand",
            "cusolver",
            "cusparse",
            "nccl",
            "nvtx",
        )
    ),
    "nvidia-nvjitlink-cu12",
    "nvidia-cusparselt-cu12",
    "nvidia-cufile-cu12",
    "nvidia-modelopt",
)


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    data = recipe.data if isinstance(recipe.data, dict) else {}
    if data.get("schema") == 1 and "gpu" in data and "python" in data:
        yield from _own(recipe)
        return
    yield from _environment(recipe, data)
    yield from _verl(recipe, data)
    yield from _image(recipe, data)
    yield from _names(recipe, data)
    yield from _torch(recipe, data)
    yield from _extensions(recipe, data)
    yield from _host(recipe, data)


def _own(recipe: Recipe) -> Iterator[Hit]:
    """A stack of ours: loading it is the check."""
    from envbuilder.errors import EnvbuilderError
    from envbuilder.stack.fields import parse_model
    from envbuilder.stack.gpu import load_gpu
    from envbuilder.stack.loading import check_stack
    from envbuilder.stack.model import Stack

    try:
        stack = parse_model(Stack, recipe.data, Path(recipe.file))
        check_stack(stack, load_gpu(stack.gpu), Path(recipe.file))
    except EnvbuilderError as error:
        place = error.place
        yield Hit(
            "stack-wrong",
            place.line if place else None,
            (error.message,),
            {"message": error.message, "cure": error.cure or ""},
            field=place.field if place else None,
        )


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _environment(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    for path in (("build", "env"), ("build", "environment"), ("env",), ("environment",)):
        node: Any = data
        for part in path:
            node = _table(node).get(part)
        for name, value in _table(node).items():
            if name == "TORCH_CUDA_ARCH_LIST":
                yield from arch_list(recipe, str(value), recipe.line_of(*path, name), ".".join((*path, name)))


def _extensions(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    build = _table(data.get("build"))
    wants = build.get("extensions") or []
    env = {**_table(build.get("env")), **_table(data.get("env"))}
    if wants and recipe.cards and "TORCH_CUDA_ARCH_LIST" not in env:
        yield Hit(
            "extension-build-without-arch-list",
            recipe.line_of("build", "extensions"),
            (f"extensions = {wants}",),
            {"later": "", "arches": ";".join(sorted({c.capability for c in recipe.cards}))},
        )


def _verl(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    verl = _table(data.get("verl"))
    rev = str(verl.get("rev") or verl.get("tag") or verl.get("version") or verl.get("commit") or "")
    if not verl:
        return
    card = lowest(recipe)
    match = re.fullmatch(r"v?(\d+)\.(\d+)(?:\.(\d+))?.*", rev)
    if not rev:
        yield Hit("verl-unpinned", recipe.line_of("verl"), ("[verl]",))
    elif match and card.major_minor < (8, 0) and not verl.get("patches"):
        number = tuple(int(p or 0) for p in match.groups())
        if number < (0, 6, 1):
            yield Hit(
                "verl-needs-patches",
                recipe.line_of("verl", "rev") or recipe.line_of("verl"),
                (f"rev = {rev}",),
                {"rev": rev, "card": card.title, "capability": card.capability},
            )
    if rev == "a3f7e2d":
        yield Hit("verl-commit-nonexistent", recipe.line_of("verl", "rev"), (f"rev = {rev}",), {"rev": rev})


def _host(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    """Driver, CUDA, dtype and attention that a file names, against its card."""
    card = lowest(recipe)
    named: dict[str, tuple[str, tuple[str, ...]]] = {}
    for path, value in _leaves(data, ()):
        named.setdefault(path[-1], (value, path))
    cuda, where = named.get("cuda") or named.get("toolkit") or ("", ())
    row = toolkit(cuda) if re.fullmatch(r"\d+\.\d+(\.\d+)?", cuda) else None
    if row and not row.compiles_for(card.major_minor) and cuda >= "13":
        yield Hit(
            "cuda-too-new-for-card",
            recipe.line_of(*where),
            (f"{where[-1]} = {cuda}",),
            {
                "cuda": cuda,
                "card": f"{card.title} ({card.capability})",
                "first": row.first_capability,
                "row_source": row.source,
            },
        )
    driver, where = named.get("driver", ("", ()))
    branch = last_branch(card.architecture)
    number = re.match(r"(\d{3})", driver)
    if number:
        least = row.minimum_driver if row else ""
        too_new = bool(branch and int(number.group(1)) > branch.branch)
        too_old = bool(least and int(number.group(1)) < int(least.split(".")[0]))
        if too_new or too_old:
            yield Hit(
                "driver-outside-card",
                recipe.line_of(*where),
                (f"driver = {driver}",),
                {
                    "driver": driver,
                    "card": card.title,
                    "architecture": card.architecture,
                    "why": "too new" if too_new else "too old",
                    "why_zh": "太新" if too_new else "太旧",
                    "last": str(branch.branch) if branch else "(current)",
                    "cuda": cuda or "11 (450.80.02), 12",
                    "least": least or "525.60.13",
                },
            )
    dtype, where = named.get("dtype", ("", ()))
    if dtype.lower() in ("bfloat16", "bf16") and card.major_minor < (8, 0):
        yield Hit(
            "bf16-on-old-card",
            recipe.line_of(*where),
            (f"dtype = {dtype}",),
            {"key": ".".join(where), "value": dtype, "card": card.title, "capability": card.capability},
        )
    elif dtype.lower() in ("float16", "fp16", "half") and card.fp16_rate == "1/64":
        yield Hit(
            "fp16-slow-on-card",
            recipe.line_of(*where),
            (f"dtype = {dtype}",),
            {"key": ".".join(where), "value": dtype, "card": card.title, "capability": card.capability},
        )
    attention, where = named.get("attention") or named.get("attn_implementation") or ("", ())
    need = floor("flash-attn")
    if attention.startswith("flash") and need and card.major_minor < need.major_minor:
        yield Hit(
            "package-needs-newer-card",
            recipe.line_of(*where),
            (f"{where[-1]} = {attention}",),
            {
                "title": need.title,
                "name": need.name,
                "minimum": need.minimum,
                "card": card.title,
                "capability": card.capability,
                "instead": need.instead_en,
                "instead_zh": need.instead_zh,
                "row_source": need.source,
            },
        )


def _leaves(node: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _leaves(value, (*path, str(key)))
    elif path and not isinstance(node, list):
        yield path, str(node)


def _image(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    """What an image's tag says against what the file lists."""
    image = data.get("image")
    if not isinstance(image, str):
        return
    base = base_image(image, recipe.line_of("image") or 1)
    listed = {
        k.lower().replace("_", "-"): str(v) for k, v in _table(data.get("packages")).items() if not isinstance(v, dict)
    }
    said = {
        "torch": base.torch,
        "cuda": base.cuda,
        "cudnn": (re.search(r"cudnn(\d+(?:\.\d+)*)", base.tag) or [""])[0].removeprefix("cudnn"),
        "flash-attn": (re.search(r"fa(\d+\.\d+\.\d+)", base.tag) or [""])[0].removeprefix("fa"),
    }
    for name, value in said.items():
        other = listed.get(name, "").split("+")[0].lstrip("=~^")
        if value and other and not (other.startswith(value) or value.startswith(other)):
            key = next(k for k in _table(data.get("packages")) if k.lower().replace("_", "-") == name)
            yield Hit(
                "stack-contradicts-image",
                recipe.line_of("packages", key),
                (f"image = {image}", f"{key} = {other}"),
                {"name": name, "tag": value, "listed": other},
            )


def _names(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    for name in _table(data.get("packages")):
        clean = name.lower().replace("_", "-")
        if clean in KNOWN_NAMES:
            continue
        near = difflib.get_close_matches(clean, KNOWN_NAMES, n=1, cutoff=0.86)
        if near and near[0] != clean:
            yield Hit(
                "package-name-misspelt", recipe.line_of("packages", name), (name,), {"name": name, "near": near[0]}
            )


def _torch(recipe: Recipe, data: dict[str, Any]) -> Iterator[Hit]:
    packages = _table(data.get("packages"))
    version = str(packages.get("torch", "")).lstrip("=")
    cuda = str(packages.get("cuda", ""))
    if not re.fullmatch(r"\d+\.\d+\.\d+(\+\w+)?", version):
        return
    tag = version.partition("+")[2] or (f"cu{''.join(cuda.split('.')[:2])}" if cuda else "")
    build = find_build(f"{version.split('+')[0]}+{tag}" if tag else version)
    card = lowest(recipe)
    if build and build.refuses(card.major_minor):
        from envbuilder.diagnose.lint.checking import needed

        number = version.split("+")[0]
        yield Hit(
            "torch-build-no-code",
            recipe.line_of("packages", "torch"),
            (f"torch = {version}",),
            {
                "build": f"{number}+{build.cuda}",
                "tag": build.cuda,
                "card": card.title,
                "sm": card.sm,
                "arches": build.shown_arches,
                "needed": needed(card),
                "needed_zh": needed(card, "或"),
                "good": ", ".join(f"{number}+{t}" for t in tags_for(number, card.major_minor)),
                "row_source": build.source,
            },
        )


def check_misspelt(recipe: Recipe) -> Iterator[Hit]:
    """Requirements whose name is nearly that of an NVIDIA or torch package."""
    for step in recipe.steps:
        if step.tool != "pip" or step.verb == "uninstall":
            continue
        for requirement in step.requirements:
            name = requirement.name
            if not name or requirement.url or name in KNOWN_NAMES:
                continue
            near = difflib.get_close_matches(name, KNOWN_NAMES, n=1, cutoff=0.9)
            if near and _one_off(name, near[0]):
                yield Hit(
                    "package-name-misspelt", requirement.line, (requirement.raw,), {"name": name, "near": near[0]}
                )


def _one_off(name: str, near: str) -> bool:
    """One letter missing, added or two swapped in a long name; never a digit (cu11 and cu12 both exist)."""
    if len(near) < 8 or re.sub(r"\D", "", name) != re.sub(r"\D", "", near):
        return False
    return abs(len(name) - len(near)) == 1 or sorted(name) == sorted(near)
