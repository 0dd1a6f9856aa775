"""conda: channels, virtual packages, providers of CUDA, CPU builds, and conda-lock files."""

from __future__ import annotations

import re
from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from envbuilder.diagnose.lint.checking import numbers
from envbuilder.diagnose.lint.model import Base, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.cuda import tag_of_cuda
from envbuilder.stack.compat.torch_builds import exists, release

_PYTORCH = ("pytorch", "pytorch-gpu")
_GPU_NAMES = (
    "pytorch",
    "pytorch-gpu",
    "cuda-version",
    "cudatoolkit",
    "cuda-toolkit",
    "pytorch-cuda",
    "cudnn",
    "cupy",
    "cuda-nvcc",
)


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    if recipe.kind == "conda-lock":
        yield from _conda_lock(recipe)
        return
    for base, steps in recipe.environments():
        for step in steps:
            if step.tool == "conda" and step.verb != "config":
                yield from _channel(step)
                yield from _mkl(step)
                yield from _names(step)
                yield from _cpu(step)
                yield from _order(step)
                yield from _solve_without_gpu(recipe, base, steps, step)
        yield from _providers(steps)
        yield from _headers(steps)
        yield from _two_torches(steps)


def _pytorch(step: Step) -> Requirement | None:
    return next((r for r in step.requirements if r.conda and r.name in _PYTORCH), None)


def _uses_pytorch_channel(step: Step, requirement: Requirement) -> bool:
    if requirement.channel:
        return requirement.channel == "pytorch"
    channels = [c.rstrip("/").rsplit("/", 1)[-1] for c in step.channels]
    return bool(channels) and "pytorch" in channels and (channels[0] == "pytorch" or "conda-forge" not in channels[:1])


def _channel(step: Step) -> Iterator[Hit]:
    """pytorch 2.6 or newer from the pytorch channel, where there is none."""
    torch = _pytorch(step)
    names = {r.name for r in step.requirements}
    if (
        torch is not None
        and _at_least(torch, "2.6")
        and (_uses_pytorch_channel(step, torch) or "pytorch-cuda" in names)
    ):
        yield Hit(
            "conda-pytorch-channel-ended",
            torch.line,
            (torch.raw, f"channels: {', '.join(step.channels)}"),
            {"version": torch.version or torch.specifier},
        )
    toolkit = next((r for r in step.requirements if r.name == "cudatoolkit"), None)
    newer = torch is not None and (not torch.specifier or _at_least(torch, "1.13"))
    alone = toolkit is not None and "pytorch-cuda" not in names
    if torch is not None and toolkit is not None and alone and newer and _uses_pytorch_channel(step, torch):
        values = {"version": torch.version or "1.13 and newer"}
        yield Hit("conda-cudatoolkit-ignored", toolkit.line, (torch.raw, toolkit.raw), values)
    cuda = next((r for r in step.requirements if r.name == "pytorch-cuda"), None)
    if torch is not None and cuda is not None and torch.version.count(".") == 2 and cuda.version:
        tag = tag_of_cuda(cuda.version)
        if exists(torch.version, tag) is False and not _at_least(torch, "2.6"):
            row = release(torch.version)
            values = {"build": f"{torch.version}+{tag}", "tags": ", ".join(row.tags if row else ())}
            yield Hit("torch-build-nonexistent", cuda.line, (torch.raw, cuda.raw), values)
    channels = [*step.channels, *(r.channel for r in step.requirements)]
    if cuda is not None and step.channels and not any("nvidia" in c for c in channels):
        yield Hit("conda-pytorch-cuda-without-nvidia", cuda.line, (cuda.raw, f"channels: {', '.join(step.channels)}"))


def _at_least(requirement: Requirement, version: str) -> bool:
    text = requirement.version or next((s.version for s in requirement.bounds if s.operator in (">=", ">", "~=")), "")
    try:
        return bool(text) and Version(text) >= Version(version)
    except InvalidVersion:
        return False


def _mkl(step: Step) -> Iterator[Hit]:
    """Old pytorch of the pytorch channel with an MKL that lacks a symbol."""
    torch = _pytorch(step)
    if torch is None or not torch.version or not _uses_pytorch_channel(step, torch):
        return
    if not (1, 0) <= numbers(torch.version)[:2] <= (2, 2):
        return
    mkl = next((r for r in step.requirements if r.name == "mkl"), None)
    if (
        mkl is None
        or (not mkl.version and not any(s.operator in ("<", "<=") for s in mkl.bounds))
        or (mkl.version and numbers(mkl.version) >= (2024, 1))
    ):
        yield Hit(
            "conda-mkl-unpinned", mkl.line if mkl else torch.line, (torch.raw, mkl.raw if mkl else "no mkl in the file")
        )


def _names(step: Step) -> Iterator[Hit]:
    for requirement in step.requirements:
        if requirement.conda and requirement.name == "torch":
            yield Hit(
                "conda-package-named-torch", requirement.line, (requirement.raw,), {"name": "torch", "right": "pytorch"}
            )
        if requirement.name == "apex" and requirement.conda and requirement.channel in ("", "conda-forge"):
            yield Hit(
                "conda-package-named-torch",
                requirement.line,
                (requirement.raw,),
                {"name": "apex", "right": "nvidia-apex"},
            )


def _cpu(step: Step) -> Iterator[Hit]:
    names = {r.name for r in step.requirements}
    for requirement in step.requirements:
        if not requirement.conda:
            continue
        wants_gpu = bool(
            names & {"pytorch-cuda", "cudatoolkit", "cuda-version", "cuda-toolkit", "cudnn", "pytorch-gpu", "cuda-nvcc"}
        )
        if requirement.name in ("cpuonly", "pytorch-cpu") and wants_gpu:
            yield Hit("conda-cpu-build", requirement.line, (requirement.raw,), {"package": requirement.name})
        elif (
            requirement.name in _PYTORCH
            and re.search(r"(^|[_*])cpu", requirement.build)
            and (wants_gpu or requirement.name == "pytorch-gpu")
        ):
            yield Hit("conda-cpu-build", requirement.line, (requirement.raw,), {"package": requirement.raw})


def _order(step: Step) -> Iterator[Hit]:
    """A CUDA label channel behind conda-forge."""
    channels = [c.rstrip("/") for c in step.channels]
    label = next((i for i, c in enumerate(channels) if re.search(r"nvidia/label/cuda-", c)), None)
    forge = next((i for i, c in enumerate(channels) if c.endswith("conda-forge")), None)
    from_label = [
        r
        for r in step.requirements
        if r.conda and re.match(r"^cuda(-|$)|^lib(cublas|cusolver|cusparse)", r.name) and not r.channel
    ]
    if label is not None and forge is not None and forge < label and from_label:
        yield Hit(
            "conda-label-channel-order",
            from_label[0].line,
            (f"channels: {', '.join(channels)}", from_label[0].raw),
            {"label": channels[label], "name": from_label[0].name},
        )


def _solve_without_gpu(recipe: Recipe, base: Base | None, steps: list[Step], step: Step) -> Iterator[Hit]:
    """A solve inside an image build, where no GPU gives conda the __cuda virtual package."""
    if recipe.kind != "dockerfile" or "CONDA_OVERRIDE_CUDA" in step.env or "lock" in " ".join(step.files + step.argv):
        return
    if step.verb not in ("install", "create", "env-create", "env-update", "update"):
        return
    from_file = bool(step.options.get("file")) and not any("explicit" in f or "@" in f for f in step.files)
    gpu = [r for r in step.requirements if r.name in _GPU_NAMES]
    named = re.search(r"#.*\b(pytorch|cudnn|cuda)\b", recipe.text)
    cuda_base = base is not None and ("cuda" in base.text.lower())
    pip_torch = any(s.tool == "pip" and s.get("torch") for s in steps)
    if not ((gpu and gpu[0].name in (*_PYTORCH, "cupy")) or (from_file and (cuda_base or named) and not pip_torch)):
        return
    if any(re.search(r"cuda|gpu", r.build) for r in gpu):
        yield Hit(
            "conda-solve-without-cuda-package",
            step.line,
            (step.text.splitlines()[0],),
            {"build": gpu[0].raw, "cuda": base.cuda if base and base.cuda else "11.8"},
        )
        return
    yield Hit(
        "conda-solve-takes-cpu-build",
        step.line,
        (step.text.splitlines()[0],),
        {"cuda": base.cuda if base and base.cuda else "11.8"},
    )


def _providers(steps: list[Step]) -> Iterator[Hit]:
    """More than one provider of the CUDA libraries in one prefix."""
    found: dict[str, Requirement] = {}
    for step in steps:
        for requirement in step.requirements:
            if not requirement.conda:
                continue
            if requirement.name == "cudatoolkit":
                found.setdefault("cudatoolkit (conda-forge's older package)", requirement)
            elif requirement.name in ("cuda-toolkit", "cuda", "cuda-runtime", "cuda-libraries"):
                found.setdefault(f"{requirement.name} (the nvidia channel's split packages)", requirement)
            elif requirement.name == "pytorch-cuda":
                found.setdefault("pytorch-cuda (pulls the nvidia channel's packages)", requirement)
    if "cudatoolkit (conda-forge's older package)" in found and len(found) > 1:
        last = max(found.values(), key=lambda r: r.line)
        yield Hit(
            "two-cuda-providers", last.line, tuple(r.raw for r in found.values()), {"providers": "; ".join(found)}
        )
    versions: dict[str, Requirement] = {}
    for step in steps:
        for requirement in step.requirements:
            if (
                requirement.conda
                and requirement.version
                and requirement.name in ("cudatoolkit", "cuda-version", "pytorch-cuda", "cuda-toolkit", "cuda-nvcc")
            ):
                short = ".".join(str(n) for n in numbers(requirement.version)[:2])
                versions.setdefault(short, requirement)
    if len({v.split(".")[0] for v in versions}) > 1:
        last = max(versions.values(), key=lambda r: r.line)
        yield Hit(
            "two-cuda-versions",
            last.line,
            tuple(r.raw for r in versions.values()),
            {"versions": " and ".join(sorted(versions))},
        )


def _headers(steps: list[Step]) -> Iterator[Hit]:
    """nvcc without the headers of the maths libraries, where something is compiled against torch."""
    names = {r.name for s in steps for r in s.requirements if r.conda}
    nvcc = next((r for s in steps for r in s.requirements if r.conda and r.name == "cuda-nvcc"), None)
    enough = {"cuda-toolkit", "cuda-libraries-dev", "cuda", "cudatoolkit-dev", "cuda-libraries-static"}
    if nvcc is None or names & enough or {"libcusolver-dev", "libcusparse-dev", "libcublas-dev"} <= names:
        return
    builds = next(
        (
            r
            for s in steps
            for r in s.requirements
            if not r.conda and (r.url.startswith("git+") or r.name in ("flash-attn", "deepspeed"))
        ),
        None,
    )
    if builds is not None:
        missing = [
            n for n in ("libcusolver-dev", "libcusparse-dev", "libcublas-dev", "cuda-cudart-dev") if n not in names
        ]
        yield Hit("conda-toolkit-without-headers", nvcc.line, (nvcc.raw, builds.raw), {"missing": ", ".join(missing)})


def _two_torches(steps: list[Step]) -> Iterator[Hit]:
    conda = next((r for s in steps for r in s.requirements if r.conda and r.name in _PYTORCH), None)
    pip = next(
        (r for s in steps if s.tool == "pip" and s.verb == "install" for r in s.requirements if r.name == "torch"), None
    )
    if conda is not None and pip is not None:
        yield Hit("conda-and-pip-torch", pip.line, (conda.raw, pip.raw))


def _conda_lock(recipe: Recipe) -> Iterator[Hit]:
    from envbuilder.diagnose.lint.documents import _mapping

    data = recipe.data if isinstance(recipe.data, dict) else {}
    metadata = _mapping(data.get("metadata"))
    platforms = [str(p) for p in metadata.get("platforms") or []] if isinstance(metadata.get("platforms"), list) else []
    if platforms and "linux-64" not in platforms:
        yield Hit(
            "conda-lock-without-linux",
            recipe.line_of("metadata", "platforms"),
            (f"platforms: {', '.join(platforms)}",),
            {"platforms": ", ".join(platforms)},
        )
    majors: dict[str, Requirement] = {}
    for step in recipe.steps:
        for requirement in step.requirements:
            if requirement.marker and requirement.marker != "linux-64":
                continue
            if requirement.name.startswith("__"):
                yield Hit(
                    "lock-holds-virtual-package",
                    requirement.line,
                    (requirement.raw, requirement.url),
                    {"name": requirement.name},
                )
            elif requirement.url.startswith("file:"):
                yield Hit(
                    "lock-holds-local-file",
                    requirement.line,
                    (requirement.raw, requirement.url),
                    {"name": requirement.name},
                )
            if not requirement.hashed:
                yield Hit("lock-without-hash", requirement.line, (requirement.raw,), {"name": requirement.name})
            if requirement.name in _PYTORCH and re.search(r"(^|_)cpu", requirement.build):
                yield Hit(
                    "lock-holds-cpu-build",
                    requirement.line,
                    (requirement.url or requirement.raw,),
                    {"name": requirement.name, "build": requirement.build},
                )
            if requirement.name in ("cuda-version", "cudatoolkit", "cuda-nvcc", "cuda-cudart") and requirement.version:
                majors.setdefault(requirement.version.split(".")[0], requirement)
    if len(majors) > 1:
        last = list(majors.values())[-1]
        yield Hit(
            "two-cuda-versions",
            last.line,
            tuple(r.raw for r in majors.values()),
            {"versions": " and ".join(sorted(majors))},
        )


def check_names(recipe: Recipe) -> Iterator[Hit]:
    """pip's own: a requirements file that names conda's package."""
    for step in recipe.steps:
        if step.tool != "pip":
            continue
        for requirement in step.requirements:
            if requirement.name == "pytorch" and not requirement.url:
                yield Hit("pip-package-named-pytorch", requirement.line, (requirement.raw,))
            if (
                requirement.name in ("cudatoolkit", "pytorch-cuda", "cudnn", "cuda-toolkit-conda")
                and not requirement.url
            ):
                yield Hit("pip-package-of-conda", requirement.line, (requirement.raw,), {"name": requirement.name})
