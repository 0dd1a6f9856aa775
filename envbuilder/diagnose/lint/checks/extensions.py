"""Building CUDA extensions: Apex above all, build isolation, what an image lacks for it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import (
    BUILDS_AGAINST_TORCH,
    numbers,
    torch_tag,
)
from envbuilder.diagnose.lint.model import Base, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.cuda import cuda_of_tag, distro


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for base, steps in recipe.environments():
        for position, step in enumerate(steps):
            yield from _apex(recipe, steps, position, step)
            yield from _isolation(recipe, steps, step)
            if builds_extension(steps, step):
                yield from _packaging(base, steps, position, step)
                yield from _builds(recipe, base, steps, position, step)


def is_apex_address(text: str) -> bool:
    """Whether an address is NVIDIA's Apex."""
    return bool(re.search(r"(NVIDIA|ROCm|ptrblck)/apex", text, re.IGNORECASE))


def _clones(steps: list[Step]) -> dict[str, Step]:
    return {s.options["folder"][0].rstrip("/"): s for s in steps if s.tool == "git" and s.options.get("folder")}


def apex_source(steps: list[Step], step: Step) -> str | None:
    """The address or folder of Apex that a step installs; None when it installs none."""
    for requirement in step.requirements:
        if is_apex_address(requirement.url):
            return requirement.url
        if requirement.url and not requirement.name and _is_apex_path(steps, step, requirement.url):
            return requirement.url
    if step.tool == "pip" and step.verb in ("install", "wheel") and not any(r.name for r in step.requirements):
        bare = [w for w in step.argv if w in (".", "./")]
        if bare and _is_apex_path(steps, step, "."):
            return "."
    if step.tool == "setup.py":
        script = step.options["script"][0]
        folder = script.rpartition("/")[0] or "."
        if _is_apex_path(steps, step, folder) and step.verb in ("install", "develop", "build", "bdist_wheel"):
            return script
    return None


def _is_apex_path(steps: list[Step], step: Step, path: str) -> bool:
    full = path if path.startswith("/") else f"{step.cwd}/{path}"
    clean = re.sub(r"/\.?(?=/|$)", "", re.sub(r"/\./", "/", full)).rstrip("/")
    for folder, clone in _clones(steps).items():
        if clean.rsplit("/", 1)[-1] == folder.rsplit("/", 1)[-1] and is_apex_address(clone.options["url"][0]):
            return True
    return clean.rsplit("/", 1)[-1] == "apex"


def builds_extension(steps: list[Step], step: Step) -> bool:
    """Whether a step compiles a CUDA extension against torch."""
    if apex_source(steps, step):
        return True
    if step.tool == "setup.py":
        return step.verb in ("install", "develop", "bdist_wheel", "build_ext")
    if step.tool != "pip" or step.verb not in ("install", "wheel"):
        return False
    return (
        any(
            (r.name in BUILDS_AGAINST_TORCH and not r.url.endswith(".whl") and not (r.name == "apex" and not r.url))
            or ("git+" in r.url and r.name in BUILDS_AGAINST_TORCH)
            for r in step.requirements
        )
        and step.cwd is not None
    )


def _apex(recipe: Recipe, steps: list[Step], position: int, step: Step) -> Iterator[Hit]:
    for requirement in step.requirements:
        by_name = requirement.name == "apex" and not requirement.url and not requirement.conda
        if by_name and step.tool == "pip" and "no-index" not in step.flags:
            yield Hit("apex-from-default-index", requirement.line, (requirement.raw,))
    source = apex_source(steps, step)
    if source is None:
        return
    text = step.text
    if "global-option" in step.options or "--global-option" in text or "--install-option" in text:
        yield Hit("pip-global-option", step.line, (_first(text),), {"option": "--global-option"})
    yield from _setup_path(steps, position, step)
    ref = _apex_ref(steps, step, source)
    torch = _torch_of(steps)
    clone = next((c for c in _clones(steps).values() if is_apex_address(c.options["url"][0])), None)
    line = clone.line if clone and clone.line <= step.line else step.line
    named = next((r for r in step.requirements if is_apex_address(r.url)), None)
    if not ref and (clone or named):
        yield Hit("apex-unpinned", named.line if named else line, (_first(clone.text) if clone else _first(text),))
    tag = numbers(ref) if re.fullmatch(r"v?\d\d\.\d\d(\.\d+)?", ref) else ()
    values = {"tag": ref, "torch": torch.number if torch else ""}
    if tag and tag < (25, 1) and torch and numbers(torch.number) >= (2, 6):
        yield Hit("apex-tag-does-not-compile", line, (ref, torch.raw), values)
    if (tag and tag >= (25, 7) and "apex.amp" in recipe.text) or (
        tag and tag >= (25, 7) and "apex import amp" in recipe.text
    ):
        yield Hit("apex-ref-without-amp", line, (ref,), values)
    switches = [n for n in ("APEX_CPP_EXT", "APEX_CUDA_EXT", "APEX_ALL_CONTRIB_EXT") if n in step.env]
    flags = (
        "--cuda_ext" in text or "--cpp_ext" in text or "cuda_ext" in " ".join(step.options.get("config-settings", []))
    )
    if switches and tag and tag < (25, 9) and not flags:
        yield Hit("apex-switch-ignored", step.line, tuple(f"{n}={step.env[n]}" for n in switches), values)
    elif not flags and not switches and step.tool == "pip":
        yield Hit("apex-without-extension-flags", step.line, (_first(text),), values)


def _apex_ref(steps: list[Step], step: Step, source: str) -> str:
    match = re.search(r"apex(?:\.git)?@([\w./-]+)", source)
    if match and match.group(1) not in ("master", "main", "HEAD"):
        return match.group(1)
    for clone in _clones(steps).values():
        branch = clone.options.get("branch") or []
        if is_apex_address(clone.options["url"][0]) and branch and branch[0] not in ("master", "main"):
            return branch[0]
    for other in steps:
        if other.argv[:1] == ["git"] and other.line <= step.line and len(other.argv) > 2:
            verb = next((w for w in other.argv if w in ("checkout", "switch", "reset", "fetch")), "")
            if verb in ("checkout", "reset", "switch"):
                ref = [w for w in other.argv[other.argv.index(verb) + 1 :] if not w.startswith("-")]
                if ref and ref[0] not in ("master", "main", "."):
                    return ref[0]
    return ""


def _setup_path(steps: list[Step], position: int, step: Step) -> Iterator[Hit]:
    if step.tool != "setup.py" or "/" not in step.options["script"][0].removeprefix("./"):
        return
    script = step.options["script"][0]
    yield Hit(
        "setup-py-from-elsewhere",
        step.line,
        (_first(step.text),),
        {
            "script": script,
            "folder": script.rpartition("/")[0],
            "cwd": step.cwd or "the current directory",
        },
    )


def _isolation(recipe: Recipe, steps: list[Step], step: Step) -> Iterator[Hit]:
    """Sources that import torch in setup.py, installed with build isolation."""
    if step.tool != "pip" or step.verb not in ("install", "wheel") or "no-build-isolation" in step.flags:
        return
    if "no-build-isolation-package" in step.options or recipe.kind == "python-lock":
        return
    if step.env.get("PIP_NO_BUILD_ISOLATION") in ("0", "1", "false", "False", "no"):
        return
    for requirement in step.requirements:
        source = requirement.name in BUILDS_AGAINST_TORCH and not requirement.url.endswith(".whl")
        if requirement.name == "apex" and not requirement.url:
            continue
        if source and not requirement.conda:
            yield Hit("needs-no-build-isolation", requirement.line, (requirement.raw,), {"name": requirement.name})
            return
    if apex_source(steps, step) and "--no-build-isolation" not in step.text and "global-option" not in step.options:
        yield Hit("needs-no-build-isolation", step.line, (_first(step.text),), {"name": "apex"})


_BRINGS_PACKAGING = (
    "packaging",
    "transformers",
    "accelerate",
    "datasets",
    "verl",
    "vllm",
    "ray",
    "huggingface-hub",
    "wandb",
)


def _packaging(base: Base | None, steps: list[Step], position: int, step: Step) -> Iterator[Hit]:
    """A build without isolation before which nothing installs its build requirements."""
    if "--no-build-isolation" not in step.text or base is None or base.image not in ("nvidia/cuda", "ubuntu", "debian"):
        return
    for earlier in steps[:position]:
        if earlier.files or earlier.tool == "conda" or "packaging" in earlier.text or "-e" in earlier.argv:
            return
        if any(r.name in _BRINGS_PACKAGING for r in earlier.requirements):
            return
    if "packaging" not in step.text and not step.files:
        name = next((r.name for r in step.requirements if r.name), "") or "apex"
        yield Hit("build-requirements-missing", step.line, (_first(step.text),), {"name": name})


def _builds(recipe: Recipe, base: Base | None, steps: list[Step], position: int, step: Step) -> Iterator[Hit]:
    earlier = steps[:position]
    # flash-attn's setup.py hands nvcc its own -gencode flags, and torch then adds none.
    others = {r.name for r in step.requirements} - {"flash-attn"}
    if (
        recipe.kind == "dockerfile"
        and (others or not step.requirements)
        and "TORCH_CUDA_ARCH_LIST" not in step.env
        and not _exported(recipe, step)
        and "-gencode" not in step.env.get("NVCC_APPEND_FLAGS", "")
    ):
        later = next((v for v in recipe.env if v.name == "TORCH_CUDA_ARCH_LIST" and v.line > step.line), None)
        yield Hit(
            "extension-build-without-arch-list",
            step.line,
            (_first(step.text),),
            {
                "later": f"line {later.line}" if later else "",
                "arches": ";".join(sorted({c.capability for c in recipe.cards})),
            },
        )
    heavy = [r.name for r in step.requirements if r.name in ("flash-attn", "vllm") and not r.url.endswith(".whl")]
    if heavy and "MAX_JOBS" not in step.env and recipe.kind == "dockerfile":
        yield Hit("build-without-max-jobs", step.line, (_first(step.text),), {"name": heavy[0]})
    if base is not None:
        yield from _toolkit(base, steps, earlier, step)
    if base is not None and base.flavour in ("runtime", "base") and base.image in ("nvidia/cuda", "pytorch/pytorch"):
        compiler = r"cuda-nvcc|cuda-toolkit|cuda-compiler|cuda_.*\.run|nvidia-cuda-toolkit"
        if any(re.search(compiler, other.text) for other in earlier):
            return
        devel = base.text.replace(f"-{base.flavour}", "-devel")
        values = {"image": base.text, "flavour": base.flavour, "devel": devel}
        yield Hit("build-on-runtime-image", step.line, (base.text, _first(step.text)), values)


def _exported(recipe: Recipe, step: Step) -> bool:
    return (
        any(v.name == "TORCH_CUDA_ARCH_LIST" and v.line <= step.line and v.kind != "shell" for v in recipe.env)
        and recipe.kind != "dockerfile"
    )


def _toolkit(base: Base, steps: list[Step], earlier: list[Step], step: Step) -> Iterator[Hit]:
    """nvcc of the base image against the CUDA of torch."""
    torch, where = None, None
    for other in earlier:
        found = other.get("torch")
        if found is not None:
            torch, where = found, other
    if torch is None or where is None or base.torch:
        return
    tag = torch_tag(torch, where)
    wanted = cuda_of_tag(tag)
    if not base.cuda:
        system = distro(base.distro) if base.distro else None
        own = next((r for s in earlier for r in s.requirements if r.name == "nvidia-cuda-toolkit"), None)
        if own and system and system.nvidia_cuda_toolkit and wanted and system.nvidia_cuda_toolkit != wanted:
            values = {"distro": base.distro, "has": system.nvidia_cuda_toolkit, "tag": tag, "torch": wanted}
            yield Hit("distro-toolkit-differs-from-torch", own.line, (base.text, own.raw, torch.raw), values)
        return
    if wanted and wanted != base.cuda:
        major = wanted.split(".")[0] != base.cuda.split(".")[0]
        apex = bool(apex_source(steps, step))
        yield Hit(
            "base-cuda-differs-from-torch" if major or apex else "base-cuda-minor-differs",
            base.line,
            (f"FROM {base.text}", torch.raw),
            {"base": base.cuda, "tag": tag, "torch": wanted},
        )


def _torch_of(steps: list[Step]) -> Requirement | None:
    return next(
        (r for s in steps for r in s.requirements if r.name == "torch" and r.version and "$" not in r.version), None
    )


def _first(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
