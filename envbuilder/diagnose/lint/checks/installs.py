"""How pip, uv and shell lines work together: indexes, order, upgrades, quoting, several requirements on a line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import (
    ON_PYTORCH_INDEX,
    TORCH_FAMILY,
    is_pytorch_index,
    names_of,
)
from envbuilder.diagnose.lint.model import Base, Fix, Hit, Recipe, Requirement, Step
from envbuilder.stack.compat.packages import needs, packages

# Packages whose metadata pins torch, so that installing them alone may replace it.
PINS_TORCH = frozenset(row.name for row in packages().built_for) | {
    "torchvision",
    "torchaudio",
    "sglang",
    "lmdeploy",
    "fairscale",
}


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    for base, steps in recipe.environments():
        yield from _upgrades(recipe, base, steps)
        yield from _conflicts(steps)
        for step in steps:
            if step.tool == "pip":
                yield from _only_pytorch_index(recipe, step)
                yield from _twice(recipe, step)
                yield from _triple(recipe, step)
                yield from _frozen(recipe, step)
            if step.tool in ("pip", "conda") and step.redirects:
                yield from _unquoted(recipe, step)
            yield from _externally_managed(base, steps, step)


def _only_pytorch_index(recipe: Recipe, step: Step) -> Iterator[Hit]:
    if not is_pytorch_index(step.index_url) or step.extra_index:
        return
    foreign = [r for r in step.requirements if r.name and not r.url and not _served(r.name)]
    files = [f for f in step.files if not _torch_only(recipe, f)]
    if foreign:
        yield Hit(
            "pytorch-index-alone",
            foreign[0].line,
            (step.index_url, foreign[0].raw),
            {
                "index": step.index_url,
                "names": ", ".join(r.name for r in foreign[:4]),
            },
        )
    elif files:
        yield Hit(
            "pytorch-index-alone",
            step.line,
            (step.text.splitlines()[0],),
            {
                "index": step.index_url,
                "names": f"what {files[0]} lists",
            },
        )


def _served(name: str) -> bool:
    return name in ON_PYTORCH_INDEX or name.startswith("nvidia-")


def _torch_only(recipe: Recipe, name: str) -> bool:
    """Whether a requirements file beside the recipe lists nothing but what the PyTorch index has."""
    from pathlib import Path

    from envbuilder.diagnose.lint.requirement import pip_requirement

    path = Path(recipe.file).parent / name
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    except OSError:
        return False
    found = [
        pip_requirement(line.split("#")[0], 1)
        for line in lines
        if line.strip() and not line.strip().startswith(("#", "-"))
    ]
    return bool(found) and all(r is not None and _served(r.name) for r in found)


def _twice(recipe: Recipe, step: Step) -> Iterator[Hit]:
    """The same project with two different versions."""
    if recipe.kind not in ("requirements", "environment", "script", "dockerfile") or step.verb == "lock":
        return
    seen: dict[tuple[str, str], Requirement] = {}
    for requirement in step.requirements:
        if not requirement.name or requirement.url:
            continue
        before = seen.setdefault((requirement.name, requirement.marker), requirement)
        if before is not requirement and before.specifier != requirement.specifier:
            yield Hit("requirement-twice", requirement.line, (before.raw, requirement.raw), {"name": requirement.name})


def _triple(recipe: Recipe, step: Step) -> Iterator[Hit]:
    """``===`` in a requirement, most often out of ``ARG V==1.0``."""
    for requirement in step.requirements:
        if "===" not in requirement.raw:
            continue
        value = requirement.version
        source = next((v for v in recipe.env if v.value.startswith("=") and v.value in requirement.raw), None)
        yield Hit(
            "requirement-triple-equals",
            source.line if source else requirement.line,
            tuple(x for x in ((f"{source.name}={source.value}" if source else ""), requirement.raw) if x),
            {"requirement": requirement.raw, "version": value, "variable": source.name if source else ""},
            fix=_strip_equals(recipe, source.line) if source else None,
        )


def _frozen(recipe: Recipe, step: Step) -> Iterator[Hit]:
    """What a freeze of another machine leaves behind."""
    for requirement in step.requirements:
        if requirement.name == "pkg-resources" and requirement.version == "0.0.0":
            fix = Fix(requirement.line, requirement.line, ()) if recipe.kind == "requirements" else None
            yield Hit("requirement-of-the-system", requirement.line, (requirement.raw,), fix=fix)
        elif re.match(r"^file:///(home|tmp|root|Users|croot|opt/conda|work|feedstock)", requirement.url):
            yield Hit("requirement-local-file", requirement.line, (requirement.raw,), {"name": requirement.name})
        elif re.match(r"^[A-Za-z][\w.-]*=\d[^=]*(=\S+)?$", requirement.raw):
            name, _, rest = requirement.raw.partition("=")
            right = f"{name}=={rest.partition('=')[0]}"
            text = recipe.lines[requirement.line - 1] if requirement.line <= len(recipe.lines) else ""
            fix = None
            if text.count(requirement.raw) == 1:
                fix = Fix(requirement.line, requirement.line, (text.replace(requirement.raw, right),))
            values = {"text": requirement.raw, "right": right}
            yield Hit("requirement-conda-syntax", requirement.line, (requirement.raw,), values, fix=fix)


def _strip_equals(recipe: Recipe, line: int) -> Fix | None:
    text = recipe.lines[line - 1]
    fixed = re.sub(r"(\b[A-Za-z_]\w*=)=+", r"\1", text, count=1)
    return Fix(line, line, (fixed,)) if fixed != text else None


def _unquoted(recipe: Recipe, step: Step) -> Iterator[Hit]:
    for redirect in step.redirects:
        match = re.match(r"^(>|<|>>)(=?\s*\d[\w.]*\*?)$", redirect)
        if not match:
            continue
        line, fix = step.line, None
        for number in range(step.line, max(step.last_line, step.line) + 1):
            text = recipe.lines[number - 1] if number <= len(recipe.lines) else ""
            spec = re.search(r"(?<![\"'\w])([A-Za-z][\w.-]*(?:\[[\w,-]+\])?[<>]=?\d[\w.,<>=!*]*)", text)
            if spec:
                line = number
                fix = Fix(number, number, (text.replace(spec.group(1), f'"{spec.group(1)}"', 1),))
                break
        yield Hit(
            "shell-unquoted-specifier",
            line,
            (recipe.lines[line - 1].strip() if line <= len(recipe.lines) else redirect,),
            {"redirect": redirect, "file": match.group(2).strip()},
            fix=fix,
        )
        return


def _upgrades(recipe: Recipe, base: Base | None, steps: list[Step]) -> Iterator[Hit]:
    """What a later step does to the torch that an earlier one pinned."""
    pinned: tuple[Step, Requirement] | None = None
    for step in steps:
        if step.tool != "pip" or step.verb not in ("install", "sync"):
            continue
        torch = step.get("torch")
        held = bool(step.constraints) or "no-deps" in step.flags or any("constraint" in v.lower() for v in step.env)
        if pinned is None and base is not None and base.torch and base.image == "pytorch/pytorch":
            loose = [r for r in step.requirements if r.name in TORCH_FAMILY and not r.version and not r.url]
            if loose and not held:
                yield Hit(
                    "torch-unpinned-over-image",
                    loose[0].line,
                    (base.text, step.text.splitlines()[0]),
                    {
                        "names": ", ".join(r.name for r in loose),
                        "image": base.text,
                        "torch": base.torch,
                    },
                )
        if pinned and not held:
            yield from _later(recipe, pinned, step, torch)
        if torch is not None and torch.version and "$" not in torch.version:
            pinned = (step, torch)


def _later(recipe: Recipe, pinned: tuple[Step, Requirement], step: Step, torch: Requirement | None) -> Iterator[Hit]:
    before, pin = pinned
    values = {"pin": pin.raw, "line": str(before.line), "names": names_of(step)}
    same = [u for u in step.indexes if u in before.indexes]
    if torch is not None and not torch.version and not torch.url and ("upgrade" in step.flags or torch.specifier):
        if torch.specifier and torch.admits(pin.number) and "upgrade" not in step.flags:
            return
        if same and "upgrade" not in step.flags:
            return
        from envbuilder.stack.compat.torch_builds import releases

        newest = [r.torch for r in releases() if torch.admits(r.torch)] if torch.specifier else [releases()[-1].torch]
        yield Hit(
            "torch-upgraded-later",
            torch.line,
            (pin.raw, step.text.splitlines()[0]),
            {
                **values,
                "flag": "-U" if "upgrade" in step.flags else torch.raw,
                "becomes": newest[-1] if newest else "",
            },
        )
        return
    if torch is not None and torch.version and torch.version != pin.version and torch.number != pin.number:
        yield Hit("torch-pinned-twice", torch.line, (pin.raw, torch.raw), {**values, "second": torch.raw})
        return
    if "upgrade" in step.flags and "upgrade-strategy" in step.options and "eager" in step.options["upgrade-strategy"]:
        yield Hit(
            "torch-upgraded-later",
            step.line,
            (pin.raw, step.text.splitlines()[0]),
            {**values, "flag": "--upgrade-strategy eager", "becomes": ""},
        )
        return
    movers = [r for r in step.requirements if _moves_torch(r, pin)]
    if movers and torch is None:
        first = movers[0]
        from envbuilder.stack.compat.packages import built_for

        row = built_for(first.name, first.number) if first.version else None
        yield Hit(
            "later-install-may-replace-torch",
            first.line,
            (pin.raw, step.text.splitlines()[0]),
            {
                **values,
                "name": first.name,
                "becomes": f"{row.torch} from the default index" if row else "",
            },
        )


def _moves_torch(requirement: Requirement, pin: Requirement) -> bool:
    from envbuilder.stack.compat.packages import built_for

    if requirement.name not in PINS_TORCH or requirement.url:
        return False
    if requirement.version:
        row = built_for(requirement.name, requirement.number)
        # The same release, but the tag of the pin (cu118) is not what the requirement asks for: torch stays as it is.
        if requirement.name in ("torchvision", "torchaudio"):
            return False
        return row is None or row.torch != pin.number or requirement.name == "vllm"
    return True


def _conflicts(steps: list[Step]) -> Iterator[Hit]:
    """Pins that contradict what a pinned package needs."""
    found = {r.name: r for step in steps for r in step.requirements if r.name and not r.conda}
    for requirement in list(found.values()):
        row = needs(requirement.name, requirement.number)
        for text in row.requires if row else ():
            from envbuilder.diagnose.lint.requirement import pip_requirement

            wanted = pip_requirement(text, 0)
            other = found.get(wanted.name) if wanted else None
            if wanted is None or other is None:
                continue
            clash = bool(other.version) and "$" not in other.version and not wanted.admits(other.number)
            lower = next((s.version for s in other.bounds if s.operator in (">=", ">")), "")
            if (
                not other.version
                and lower
                and any(s.operator == "<" and _not_below(lower, s.version) for s in wanted.bounds)
            ):
                clash = True
            if requirement.name == "torch" and other.name == "numpy" and not other.version:
                # torch's own metadata leaves numpy open, so pip takes the newest, which these builds cannot load.
                clash = clash or not any(bound.operator in ("<", "<=", "~=") for bound in other.bounds)
            if clash:
                yield Hit(
                    "requirements-contradict",
                    other.line,
                    (requirement.raw, other.raw),
                    {
                        "name": requirement.name,
                        "version": requirement.number,
                        "needs": text,
                        "other": other.raw,
                    },
                )


def _not_below(version: str, limit: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) >= Version(limit)
    except InvalidVersion:
        return False


_MANAGED = ("ubuntu24.04", "noble", "debian12", "bookworm", "debian13", "trixie")


def _externally_managed(base: Base | None, steps: list[Step], step: Step) -> Iterator[Hit]:
    """pip against the system Python of a distribution that forbids it."""
    if base is None or base.distro not in _MANAGED or base.image not in ("nvidia/cuda", "ubuntu", "debian"):
        return
    if step.tool != "pip" or step.verb != "install" or not step.argv:
        return
    program = step.argv[0]
    if program not in ("pip", "pip3", "python3", "python") or "break-system-packages" in step.flags:
        return
    allowed = ("PIP_BREAK_SYSTEM_PACKAGES", "VIRTUAL_ENV")
    earlier = " ".join(s.text for s in steps if s.line <= step.line)
    if (
        any(name in step.env for name in allowed)
        or re.search(
            r"EXTERNALLY-MANAGED|-m venv|virtualenv|uv venv|conda|micromamba|get-pip|pyenv|deadsnakes|python-build",
            earlier,
        )
        or "/venv" in step.env.get("PATH", "")
        or "/bin" in step.env.get("PATH", "")
    ):
        return
    yield Hit("pip-externally-managed", step.line, (step.text.splitlines()[0],), {"distro": base.distro})


def check_uv_sources(recipe: Recipe) -> Iterator[Hit]:
    """``[tool.uv.sources]`` of a pyproject.toml that name an index which ``[[tool.uv.index]]`` does not declare."""
    tool = recipe.data.get("tool") if isinstance(recipe.data, dict) else None
    uv = tool.get("uv") if isinstance(tool, dict) else None
    if not isinstance(uv, dict) or not isinstance(uv.get("sources"), dict):
        return
    indexes = uv.get("index")
    declared = {i.get("name") for i in indexes if isinstance(i, dict)} if isinstance(indexes, list) else set()
    for package, source in uv["sources"].items():
        for entry in source if isinstance(source, list) else [source]:
            index = entry.get("index") if isinstance(entry, dict) else None
            if isinstance(index, str) and index not in declared:
                line = recipe.line_of("tool", "uv", "sources", package)
                values = {"package": str(package), "index": index}
                yield Hit("uv-index-undeclared", line, (f"{package} = {{ index = {index!r} }}",), values)
