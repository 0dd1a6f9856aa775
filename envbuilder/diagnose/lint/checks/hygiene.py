"""Variables nobody reads, toolkits that do not match, secrets in files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import torch_tag
from envbuilder.diagnose.lint.model import Fix, Hit, Recipe
from envbuilder.stack.compat.cuda import cuda_of_tag

# What people write -> the variable that is read (empty: none is).
MISNAMED = {
    "CONDA_CUDA_OVERRIDE": "CONDA_OVERRIDE_CUDA",
    "CONDA_OVERRIDE_CUDA_VERSION": "CONDA_OVERRIDE_CUDA",
    "NVIDIA_DISABLE_REQUIRES": "NVIDIA_DISABLE_REQUIRE",
    "TORCH_ARCH_LIST": "TORCH_CUDA_ARCH_LIST",
    "TORCH_CUDA_ARCH": "TORCH_CUDA_ARCH_LIST",
    "TORCH_CUDA_ARCHS": "TORCH_CUDA_ARCH_LIST",
    "CUDA_ARCH_LIST": "TORCH_CUDA_ARCH_LIST",
    "PYTORCH_CUDA_ALLOC_CONFIG": "PYTORCH_CUDA_ALLOC_CONF",
    "CUDA_VISIBLE_DEVICE": "CUDA_VISIBLE_DEVICES",
    "NVIDIA_VISIBLE_DEVICE": "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITY": "NVIDIA_DRIVER_CAPABILITIES",
    "LD_LIBRARY_PATHS": "LD_LIBRARY_PATH",
    "TRITON_MAX_SHARED_MEMORY": "",
    "MAX_JOB": "MAX_JOBS",
    "HF_ENDPOINTS": "HF_ENDPOINT",
}
_SECRET = re.compile(
    r"\b(hf_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|gh[pousr]_[A-Za-z0-9]{30,}|AKIA[0-9A-Z]{16}|glpat-[\w-]{20,}|xox[bp]-[\w-]{20,})"
    r"|://[^/\s:@$]+:([^/\s:@$]{6,})@"
)


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    yield from _names(recipe)
    yield from _cuda_home(recipe)
    yield from _secrets(recipe)
    yield from _capabilities(recipe)


def _names(recipe: Recipe) -> Iterator[Hit]:
    for variable in recipe.env:
        right = MISNAMED.get(variable.name)
        if right is None or (variable.kind == "shell" and f"${variable.name}" in recipe.text.replace("{", "")):
            continue
        if any(v.name == right for v in recipe.env) and variable.kind == "ARG":
            continue
        text = recipe.lines[variable.line - 1] if variable.line <= len(recipe.lines) else ""
        fix = None
        if right and text.count(variable.name) == 1:
            fix = Fix(variable.line, variable.line, (text.replace(variable.name, right),))
        rule = "variable-misnamed" if right else "variable-nobody-reads"
        yield Hit(
            rule,
            variable.line,
            (f"{variable.name}={variable.value}",),
            {"name": variable.name, "right": right},
            fix=fix,
        )


def _cuda_home(recipe: Recipe) -> Iterator[Hit]:
    """CUDA_HOME of another release than the torch that is installed."""
    torch = next(((r, s) for s in recipe.steps for r in s.requirements if r.name == "torch" and r.version), None)
    if torch is None:
        return
    tag = torch_tag(*torch)
    wanted = cuda_of_tag(tag)
    for variable in recipe.env:
        match = (
            re.search(r"/cuda-(\d+\.\d+)", variable.value)
            if variable.name in ("CUDA_HOME", "CUDA_PATH", "CUDACXX")
            else None
        )
        if match and wanted and match.group(1) != wanted:
            yield Hit(
                "cuda-home-differs-from-torch",
                variable.line,
                (f"{variable.name}={variable.value}", torch[0].raw),
                {"name": variable.name, "home": match.group(1), "tag": tag, "torch": wanted},
            )


def _secrets(recipe: Recipe) -> Iterator[Hit]:
    for number, line in enumerate(recipe.lines, start=1):
        match = _SECRET.search(line)
        if match:
            found = match.group(1) or match.group(2)
            if re.fullmatch(r"[xX*.<>_-]+|password|token|secret|changeme|your\w*", found):
                continue
            shown = line.strip().replace(found, f"{found[:4]}***")
            yield Hit("secret-in-file", number, (shown[:160],), {"start": found[:4]})


def _capabilities(recipe: Recipe) -> Iterator[Hit]:
    for variable in recipe.env:
        if (
            variable.name == "NVIDIA_DRIVER_CAPABILITIES"
            and variable.value
            and not {"all", "compute"} & set(variable.value.split(","))
        ):
            yield Hit(
                "driver-capabilities-without-compute",
                variable.line,
                (f"{variable.name}={variable.value}",),
                {"value": variable.value},
            )
