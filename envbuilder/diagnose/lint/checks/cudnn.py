"""cuDNN and the other CUDA libraries: which copies end up in one environment, and which the loader finds."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import numbers, torch_tag
from envbuilder.diagnose.lint.model import Base, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.packages import cudnn_of
from envbuilder.stack.compat.torch_builds import find_build, release

_NVIDIA = re.compile(
    r"^nvidia-(cublas|cudnn|cuda-runtime|cuda-nvrtc|cuda-cupti|cufft|curand|cusolver|cusparse|nccl|nvtx)-(cu\d+)$"
)
_UNSUFFIXED = frozenset(
    f"nvidia-{name}"
    for name in (
        "cublas",
        "cuda-runtime",
        "cuda-nvrtc",
        "cuda-cupti",
        "cufft",
        "curand",
        "cusolver",
        "cusparse",
        "nvtx",
    )
)
_SYSTEM_DIRS = re.compile(
    r"/usr/lib/x86_64-linux-gnu|/usr/local/cuda[\w./-]*/lib(64)?|cudnn[\w./-]*/lib(64)?|/usr/lib64|/opt/cudnn"
)


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for base, steps in recipe.environments():
        torch, where = _torch(steps)
        loads = _torch_cudnn(base, torch, where)
        yield from _mixed(steps, torch)
        yield from _pinned(steps, torch, loads)
        yield from _majors(steps, torch, loads)
        yield from _on_image(recipe, base, steps)
        yield from _library_path(recipe, base, torch, loads, steps)
        yield from _apt(base, steps)
        yield from _lock(recipe, steps, torch)
        yield from _conda_cudnn(steps, torch, loads)


def _torch(steps: list[Step]) -> tuple[Requirement | None, Step | None]:
    found: tuple[Requirement | None, Step | None] = (None, None)
    for step in steps:
        for requirement in step.requirements:
            if requirement.name == "torch" and requirement.version and "$" not in requirement.version:
                found = (requirement, step)
    return found


def _torch_cudnn(base: Base | None, torch: Requirement | None, step: Step | None) -> str:
    """The cuDNN that torch loads, as far as known: a version, or only a major."""
    if torch is None or step is None:
        return base.cudnn if base and base.torch else ""
    row = find_build(f"{torch.number}+{torch_tag(torch, step)}") if torch_tag(torch, step) else find_build(torch.number)
    if row and row.cudnn:
        return row.cudnn
    known = release(torch.number)
    return known.cudnn.split(".")[0] if known and known.cudnn else ""


def _mixed(steps: list[Step], torch: Requirement | None) -> Iterator[Hit]:
    """nvidia-* packages of more than one CUDA major."""
    majors: dict[str, Requirement] = {}
    for step in steps:
        for requirement in step.requirements:
            if requirement.conda:
                continue
            match = _NVIDIA.match(requirement.name)
            if match:
                majors.setdefault(match.group(2), requirement)
            elif requirement.name in _UNSUFFIXED and numbers(requirement.version)[:1] >= (13,):
                # From CUDA 13 on the names carry no suffix.
                majors.setdefault("cu13", requirement)
    wanted = f"cu{torch.local[2:4]}" if torch and torch.local.startswith("cu") else ""
    if torch and wanted and majors:
        majors.setdefault(wanted, torch)
    if len(majors) > 1:
        tags = sorted(majors)
        odd = next((majors[t] for t in tags if t != wanted), majors[tags[-1]])
        yield Hit(
            "nvidia-packages-of-two-cudas",
            odd.line,
            tuple(majors[t].raw for t in tags),
            {
                "tags": " and ".join(tags),
                "wanted": wanted if wanted in tags else "",
                "torch": torch.raw if torch else "",
            },
        )


def _pinned(steps: list[Step], torch: Requirement | None, loads: str) -> Iterator[Hit]:
    """A pip-level cuDNN other than the one the torch wheel requires."""
    if torch is None or loads.count(".") < 2:
        return
    for step in steps:
        for requirement in step.requirements:
            match = re.match(r"^nvidia-cudnn-(cu1\d)$", requirement.name)
            if match and requirement.version and requirement.version != loads and step.verb != "lock":
                if torch.local and match.group(1) != f"cu{torch.local[2:4]}":
                    continue
                yield Hit(
                    "cudnn-pin-contradicts-torch",
                    requirement.line,
                    (torch.raw, requirement.raw),
                    {
                        "torch": torch.raw,
                        "wanted": f"{requirement.name}=={loads}",
                        "loads": loads,
                        "pinned": requirement.version,
                        "name": requirement.name,
                    },
                )


def _majors(steps: list[Step], torch: Requirement | None, loads: str) -> Iterator[Hit]:
    """Two cuDNN majors in one process."""
    if torch is None or not loads:
        return
    major = loads.split(".")[0]
    for step in steps:
        for requirement in step.requirements:
            row = cudnn_of(requirement.name, requirement.number) if requirement.version else None
            if row and row.cudnn != major:
                yield Hit(
                    "two-cudnn-majors",
                    requirement.line,
                    (torch.raw, requirement.raw),
                    {
                        "name": requirement.name,
                        "version": requirement.number,
                        "its": row.cudnn,
                        "torch": torch.raw,
                        "torchs": major,
                        "row_source": row.source,
                    },
                )


def _on_image(recipe: Recipe, base: Base | None, steps: list[Step]) -> Iterator[Hit]:
    """CUDA libraries from pip on an image that brings its own torch."""
    if base is None or not base.torch:
        return
    reinstalled = any(s.tool == "pip" and s.get("torch") for s in steps)
    for step in steps:
        if step.tool != "pip" or reinstalled:
            continue
        found = [r for r in step.requirements if _NVIDIA.match(r.name)]
        if found:
            path = next((v for v in recipe.env if v.name == "LD_LIBRARY_PATH" and "nvidia" in v.value), None)
            yield Hit(
                "cuda-libraries-over-image",
                found[0].line,
                tuple(
                    x
                    for x in (
                        f"FROM {base.text}",
                        step.text.splitlines()[0],
                        f"LD_LIBRARY_PATH={path.value}" if path else "",
                    )
                    if x
                ),
                {"names": ", ".join(r.name for r in found), "image": base.text},
            )


def _library_path(
    recipe: Recipe, base: Base | None, torch: Requirement | None, loads: str, steps: list[Step]
) -> Iterator[Hit]:
    """LD_LIBRARY_PATH with a directory that holds a system cuDNN ahead of the wheel's own."""
    has_torch = torch is not None or bool(base and base.torch)
    apt = any(r.name.startswith("libcudnn") for s in steps if s.tool == "apt" for r in s.requirements)
    system = base.cudnn if base else ""
    if not has_torch or not (system or apt or (recipe.kind == "script")):
        return
    for variable in recipe.env:
        if variable.name != "LD_LIBRARY_PATH" or (base and base.torch and "nvidia" not in variable.value):
            continue
        held = _SYSTEM_DIRS.search(variable.value)
        if not held or (recipe.kind == "script" and "cudnn" not in variable.value):
            continue
        # The CUDA images keep cuDNN in the multiarch directory; /usr/local/cuda/lib64 holds none of it.
        if (
            held.group(0).startswith("/usr/local/cuda")
            and "cudnn" not in variable.value
            and "x86_64-linux-gnu" not in variable.value
        ):
            continue
        major = loads.split(".")[0] if loads else ""
        same = not system or not major or system in ("", major)
        yield Hit(
            "library-path-hides-cudnn" if same else "library-path-holds-cudnn",
            variable.line,
            (f"LD_LIBRARY_PATH={variable.value}",),
            {
                "directory": held.group(0),
                "system": system or "8 or 9",
                "torch": torch.raw if torch else (base.text if base else ""),
                "loads": loads,
            },
        )


def _apt(base: Base | None, steps: list[Step]) -> Iterator[Hit]:
    if base is None or not base.cuda:
        return
    for step in steps:
        if step.tool != "apt" or step.verb != "install":
            continue
        for requirement in step.requirements:
            name, version = requirement.name, requirement.version
            other = re.search(r"\+cuda(\d+\.\d+)", requirement.raw) or re.search(r"-cuda-?(\d+)(?:-(\d+))?$", name)
            if re.match(r"^(lib)?(cudnn|nccl)", name):
                cuda = other.group(1) if other else ""
                if cuda and cuda.split(".")[0] != base.cuda.split(".")[0]:
                    yield Hit(
                        "apt-library-of-another-cuda",
                        requirement.line,
                        (f"FROM {base.text}", requirement.raw),
                        {"name": name, "cuda": cuda, "base": base.cuda},
                    )
                elif not version and not cuda and re.match(r"^lib(cudnn\d+|nccl\d?)(-dev)?$", name):
                    yield Hit(
                        "apt-library-unpinned",
                        requirement.line,
                        (f"FROM {base.text}", requirement.raw),
                        {"name": name, "base": base.cuda},
                    )
            if name == "nvidia-cuda-toolkit" and base.image == "nvidia/cuda":
                yield Hit(
                    "apt-second-toolkit", requirement.line, (f"FROM {base.text}", requirement.raw), {"base": base.cuda}
                )
            match = re.match(r"^cuda-(?:toolkit|nvcc|compiler|libraries|libraries-dev)-(\d+)-(\d+)$", name)
            if match and f"{match.group(1)}.{match.group(2)}" != base.cuda and base.image == "nvidia/cuda":
                yield Hit(
                    "apt-library-of-another-cuda",
                    requirement.line,
                    (f"FROM {base.text}", requirement.raw),
                    {"name": name, "cuda": f"{match.group(1)}.{match.group(2)}", "base": base.cuda},
                )


def _lock(recipe: Recipe, steps: list[Step], torch: Requirement | None) -> Iterator[Hit]:
    """A lock with torch and none of the CUDA packages its wheel requires."""
    everything = [r for s in steps for r in s.requirements if not r.conda]
    names = {r.name for r in everything}
    locked = (
        recipe.kind in ("python-lock",)
        or any(r.hashed for r in everything)
        or ({"filelock", "sympy", "networkx", "jinja2"} <= names and all(r.version for r in everything))
    )
    if torch is None or not locked or any(n.startswith("nvidia-cudnn") for n in names) or torch.local == "cpu":
        return
    if recipe.kind == "conda-lock" and any(r.name in ("pytorch", "cudnn") for s in steps for r in s.requirements):
        return
    major = f"cu{torch.local[2:4]}" if torch.local.startswith("cu") else ""
    known = find_build(torch.version)
    row = release(torch.number)
    if not major and row and row.default_tag:
        major = f"cu{row.default_tag[2:4]}"
    version = (known.cudnn if known else "") or (row.cudnn if row and not torch.local else "")
    # cu118 wheels of the PyTorch index before 2.3 carry the libraries inside.
    if not major or not version or (torch.local and numbers(torch.number) < (2, 3)):
        return
    yield Hit(
        "lock-without-cuda-libraries",
        torch.line,
        (torch.raw.split(" --hash")[0],),
        {
            "torch": torch.number + (f"+{torch.local}" if torch.local else ""),
            "missing": f"nvidia-cudnn-{major}=={version}",
            "major": major,
        },
    )


def _conda_cudnn(steps: list[Step], torch: Requirement | None, loads: str) -> Iterator[Hit]:
    """A conda cuDNN beside a pip torch: it serves other code, never torch."""
    if torch is None or torch.conda or not loads:
        return
    for step in steps:
        for requirement in step.requirements:
            if requirement.conda and requirement.name == "cudnn" and requirement.build.startswith("h092f7fd"):
                if not torch.local.startswith("cu11") or step.verb == "lock":
                    continue
                yield Hit(
                    "conda-cudnn-of-another-cuda", requirement.line, (requirement.raw,), {"build": requirement.build}
                )
