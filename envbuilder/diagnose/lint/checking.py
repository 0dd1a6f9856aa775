"""Small questions that several checks ask of requirements, addresses and recipes."""

from __future__ import annotations

import re

from envbuilder.diagnose.lint.model import Base, Recipe, Requirement, Step
from envbuilder.stack.compat.cards import Card
from envbuilder.stack.compat.torch_builds import release

TORCH_FAMILY = ("torch", "torchvision", "torchaudio")
# What the PyTorch index serves beside the torch family: dependencies of its wheels.
ON_PYTORCH_INDEX = frozenset(
    {
        "torch",
        "torchvision",
        "torchaudio",
        "torchtext",
        "torchdata",
        "torchrec",
        "torchtune",
        "torchao",
        "pytorch-triton",
        "triton",
        "xformers",
        "fbgemm-gpu",
        "numpy",
        "pillow",
        "jinja2",
        "markupsafe",
        "networkx",
        "sympy",
        "mpmath",
        "filelock",
        "fsspec",
        "typing-extensions",
        "setuptools",
        "requests",
        "urllib3",
        "certifi",
        "charset-normalizer",
        "idna",
        "packaging",
        "tqdm",
        "pyyaml",
        "ninja",
        "cmake",
        "mkl",
        "intel-openmp",
        "tbb",
    }
)
_PYTORCH_INDEX = re.compile(r"download(?:-r2)?\.pytorch\.org/whl|/pytorch[-/](?:wheels|whl)|pytorch-wheels")
_TAG = re.compile(r"/(cu\d{2,3}|cpu|rocm[\d.]+|xpu)/?$")
# Packages whose source needs torch at build time and that come as source, from an address or by default.
BUILDS_AGAINST_TORCH = frozenset(
    {
        "apex",
        "flash-attn",
        "causal-conv1d",
        "mamba-ssm",
        "transformer-engine",
        "pytorch3d",
        "detectron2",
        "tinycudann",
        "tiny-cuda-nn",
        "torch-scatter",
        "torch-sparse",
        "torch-cluster",
        "gptqmodel",
        "auto-gptq",
        "diff-gaussian-rasterization",
        "nvdiffrast",
        "kaolin",
        "grouped-gemm",
        "megablocks",
    }
)


def is_pytorch_index(address: str) -> bool:
    """Whether an index address is PyTorch's or a mirror of it."""
    return bool(_PYTORCH_INDEX.search(address))


def tag_of_index(address: str) -> str:
    """``cu118`` of ``https://download.pytorch.org/whl/cu118``; empty where the address names none."""
    match = _TAG.search(address.rstrip("/"))
    return match.group(1) if match else ""


def torch_tag(requirement: Requirement, step: Step) -> str:
    """The CUDA tag of the build that a torch requirement gets: its local part, its index, else the default index's.

    Empty where that is not known.
    """
    if requirement.local:
        return requirement.local
    if requirement.url:
        match = re.search(r"(?:\+|%2B)(cu\d+|cpu)", requirement.url)
        return match.group(1) if match else ""
    if step.index_url and is_pytorch_index(step.index_url):
        return tag_of_index(step.index_url)
    if "$" in step.index_url:
        return ""
    tags = [tag_of_index(u) for u in [*step.extra_index, *step.find_links] if is_pytorch_index(u)]
    if tags:
        return tags[0]
    found = release(requirement.number)
    return found.default_tag if found else ""


def names_of(step: Step) -> str:
    """The requirements of a step as a person lists them."""
    return ", ".join(r.raw for r in step.requirements)


def runs_code(arches: list[str], card: Card) -> bool:
    """Whether code for ``arches`` (``6.1``, ``8.6+PTX``) runs on the card: same major, minor up to its own; or PTX."""
    for arch in arches:
        number, _, ptx = arch.partition("+")
        match = re.fullmatch(r"(\d+)\.(\d+)[af]?", number)
        if not match:
            continue
        pair = (int(match.group(1)), int(match.group(2)))
        if pair[0] == card.major_minor[0] and pair[1] <= card.major_minor[1]:
            return True
        if ptx and pair <= card.major_minor:
            return True
    return False


def card_list(cards: tuple[Card, ...]) -> str:
    """Cards as a person lists them: ``Tesla P40 (6.1) and RTX 3090 (8.6)``."""
    return " and ".join(f"{card.title} ({card.capability})" for card in cards)


def lowest(recipe: Recipe) -> Card:
    """The card of the lowest capability that the recipe is for: it decides."""
    return min(recipe.cards, key=lambda card: card.major_minor)


def needed(card: Card, either: str = "or") -> str:
    """The code a card runs: ``sm_61 or sm_60`` (``either``: the word between them)."""
    major, minor = card.major_minor
    return f" {either} ".join(f"sm_{major}{m}" for m in range(minor, -1, -1) if (major, m) in _REAL)


_REAL = {
    (3, 5),
    (3, 7),
    (5, 0),
    (5, 2),
    (6, 0),
    (6, 1),
    (7, 0),
    (7, 5),
    (8, 0),
    (8, 6),
    (8, 9),
    (9, 0),
    (10, 0),
    (12, 0),
}


def gpu_image(base: Base | None) -> bool:
    """Whether a base image is one with CUDA in it."""
    return base is not None and bool(base.cuda)


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: (8, 9, 7) of 8.9.7.29-1+cuda11.8."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0])[:4])
