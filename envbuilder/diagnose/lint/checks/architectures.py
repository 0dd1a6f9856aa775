"""Architecture lists: TORCH_CUDA_ARCH_LIST and the fixed flags of build files, against the card and the toolkit."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import card_list, lowest, numbers, runs_code
from envbuilder.diagnose.lint.model import Hit, Recipe
from envbuilder.stack.compat.cuda import toolkit

_ARCH_NAMES = "Kepler|Kepler\\+Tesla|Maxwell|Maxwell\\+Tegra|Pascal|Volta|Turing|Ampere|Ada|Hopper|Blackwell|All|Common"


def check(recipe: Recipe) -> Iterator[Hit]:
    """The lists of variables and of single commands."""
    for variable in recipe.env:
        if variable.name in ("TORCH_CUDA_ARCH_LIST", "torch_cuda_arch_list"):
            yield from arch_list(recipe, variable.value, variable.line)
    for step in recipe.steps:
        match = re.match(r"^\s*TORCH_CUDA_ARCH_LIST=", step.text)
        if match and "TORCH_CUDA_ARCH_LIST" in step.env:
            yield from arch_list(recipe, step.env["TORCH_CUDA_ARCH_LIST"], step.line)


def arch_list(recipe: Recipe, value: str, line: int | None, field: str | None = None) -> Iterator[Hit]:
    """A TORCH_CUDA_ARCH_LIST against the cards and against the toolkit of the base image."""
    arches = [part for part in re.split(r"[;\s,]+", value.strip()) if part]
    if not arches or "$" in value:
        return
    evidence = (f"TORCH_CUDA_ARCH_LIST={value}",)
    wrong = [a for a in arches if not re.fullmatch(rf"\d+\.\d[af]?(\+PTX)?|(?:{_ARCH_NAMES})(\+PTX)?", a)]
    if wrong:
        match = re.fullmatch(r"(?:sm_|compute_)?(\d{1,2})(\d)", wrong[0])
        yield Hit(
            "arch-list-malformed",
            line,
            evidence,
            {
                "wrong": wrong[0],
                "right": f"{match.group(1)}.{match.group(2)}" if match else "",
            },
            field=field,
        )
        return
    named = {
        "Pascal": "6.0 6.1+PTX",
        "Maxwell": "5.0 5.2+PTX",
        "Volta": "7.0+PTX",
        "Turing": "7.5+PTX",
        "Ampere": "8.0 8.6+PTX",
        "Ada": "8.9+PTX",
        "Hopper": "9.0+PTX",
        "All": "5.0+PTX",
        "Common": "5.0 6.0+PTX",
    }
    plain = [x for a in arches for x in named.get(a, a).split()]
    missing = [card for card in recipe.cards if not runs_code(plain, card)]
    if missing:
        yield Hit(
            "arch-list-misses-card",
            line,
            evidence,
            {
                "value": value,
                "missing": card_list(tuple(missing)),
                "cards": card_list(recipe.cards),
                "wanted": ";".join(sorted({c.capability for c in recipe.cards}, key=numbers)),
            },
            field=field,
        )
    for stage in recipe.stages:
        row = toolkit(stage.base.cuda) if stage.base.cuda else None
        beyond = [a for a in plain if row and not row.compiles_for(numbers(a)[:2])]  # type: ignore[arg-type]  # a pair
        if row and beyond:
            yield Hit(
                "arch-beyond-toolkit",
                line,
                (*evidence, f"FROM {stage.base.text}"),
                {
                    "arch": beyond[0].removesuffix("+PTX"),
                    "cuda": stage.base.cuda,
                    "first": row.first_capability,
                    "last": row.last_capability,
                },
                field=field,
            )
            return


def check_commands(recipe: Recipe) -> Iterator[Hit]:
    """nvcc and cmake lines of scripts and Dockerfiles with fixed architectures."""
    if re.search(r"\b(nvcc|cmake|make)\b", recipe.text):
        yield from check_build_file(recipe)


def check_build_file(recipe: Recipe) -> Iterator[Hit]:
    """CMake, Make and setup.py: fixed architectures that miss the card."""
    card = lowest(recipe)
    found: list[tuple[str, int, str]] = []
    for number, line in enumerate(recipe.lines, start=1):
        code = line.split("#")[0] if not line.strip().startswith(("CMAKE", "set")) else line
        for match in re.finditer(
            r"code=\[?(?:sm|compute)_(\d{2,3})|-arch[= ]\s*sm_(\d{2,3})|--gpu-architecture[= ]sm_(\d{2,3})", code
        ):
            digits = next(g for g in match.groups() if g)
            ptx = "+PTX" if "code=compute_" in match.group(0) or "code=[compute_" in match.group(0) else ""
            found.append((f"{digits[:-1]}.{digits[-1]}{ptx}", number, line.strip()))
        cmake = re.search(r"CUDA_ARCHITECTURES[\"']?[\s=:A-Z]*[\"']?([\d;, ar-]+)", code)
        if cmake and re.search(r"\d{2}", cmake.group(1)):
            for digits in re.findall(r"\d{2,3}", cmake.group(1)):
                found.append((f"{digits[:-1]}.{digits[-1]}+PTX", number, line.strip()))
        bins = re.search(r"CUDA_ARCH_(?:BIN|LIST)[\"']?[\s=]*[\"']?((?:\d\.\d[;, ]*)+)", code)
        if bins:
            found += [(a, number, line.strip()) for a in re.findall(r"\d\.\d", bins.group(1))]
    if not found:
        return
    if not runs_code([arch for arch, _, _ in found], card):
        first = found[0]
        shown = ", ".join(dict.fromkeys("compute_" + a.removesuffix("+PTX").replace(".", "") for a, _, _ in found))
        yield Hit(
            "gencode-misses-card",
            first[1],
            tuple(dict.fromkeys(t for _, _, t in found))[:3],
            {
                "arches": shown,
                "card": card.title,
                "sm": card.sm,
                "number": card.capability.replace(".", ""),
            },
        )
