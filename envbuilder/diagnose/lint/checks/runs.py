"""RUN lines and scripts as the shell sees them: what is lost between lines, apt, activation, chosen indexes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import lowest
from envbuilder.diagnose.lint.model import Base, Fix, Hit, Recipe, Step
from envbuilder.stack.compat.cards import Card
from envbuilder.stack.compat.packages import floor

_OFFICIAL = ("nvidia/cuda", "ubuntu", "debian", "pytorch/pytorch", "python")
_HOOK = re.compile(
    r"conda\.sh|shell\.(bash|posix) hook|shell hook|bashrc|\.profile|conda init|micromamba\.sh|module load|bash -l"
)

_CHANGING = re.compile(
    r"^(export\s+\w+=|cd\s+\S+$|(source|\.)\s+\S*activate\b|(conda|mamba|micromamba)\s+activate\b|ulimit\b|umask\b)"
)
_BF16 = re.compile(
    r"(--bf16)(?:[= ](true|1|yes))?(?=\s|$)(?!\s+(?:false|0|no)\b)|(--mixed[_-]precision[= ]bf16)"
    r"|(--(?:torch_)?dtype[= ]bf(?:loat)?16)",
    re.IGNORECASE,
)

_FP16 = re.compile(
    r"--fp16(?=\s|$)(?!\s+(?:[Ff]alse|0|no)\b)|--mixed[_-]precision[= ]fp16|--(?:torch_)?dtype[= ](?:float16|fp16|half)"
)


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    yield from _lost(recipe)
    yield from _activation(recipe)
    yield from _index_from_driver(recipe)
    yield from _flags(recipe)
    for base, steps in recipe.environments():
        if base is not None:
            yield from _apt(base, steps)


def check_continuations(recipe: Recipe) -> Iterator[Hit]:
    """Backslashes of a script that spaces follow: they continue nothing. (BuildKit forgives that in a Dockerfile.)"""
    for number, line in enumerate(recipe.lines, start=1):
        after = recipe.lines[number] if number < len(recipe.lines) else ""
        if re.search(r"(?:^|[^\\])\\[ \t]+$", line) and after.strip() and not line.lstrip().startswith("#"):
            shown = line.strip()
            yield Hit("continuation-broken", number, (shown,), fix=Fix(number, number, (line.rstrip(),)))


def _lost(recipe: Recipe) -> Iterator[Hit]:
    """A RUN that only changes its own shell."""
    if recipe.kind != "dockerfile":
        return
    for number, line in enumerate(recipe.lines, start=1):
        match = re.match(r"^\s*RUN\s+(.*[^\\])$", line)
        if not match or (number > 1 and recipe.lines[number - 2].rstrip().endswith("\\")):
            continue
        parts = [p.strip() for p in re.split(r"&&|;", match.group(1)) if p.strip()]
        if parts and all(_CHANGING.match(part) for part in parts) and "/etc/" not in line and ">>" not in line:
            yield Hit("run-changes-only-its-shell", number, (line.strip(),), {"what": parts[0].split()[0]})


def _activation(recipe: Recipe) -> Iterator[Hit]:
    """conda activate where no hook was sourced."""
    if recipe.kind not in ("script", "dockerfile") or _HOOK.search(recipe.text):
        return
    first = recipe.lines[0] if recipe.lines else ""
    if re.search(r"bash\b.*\s-\w*[il]", first) or re.search(r"SHELL\s*\[.*(-l|--login|conda.*run)", recipe.text):
        return
    for step in recipe.steps:
        if step.argv[:2] in (["conda", "activate"], ["mamba", "activate"]):
            alone = recipe.kind == "dockerfile" and re.match(
                r"^\s*RUN\s+\w+\s+activate\s+\S+\s*$", recipe.lines[step.line - 1]
            )
            if not alone:
                yield Hit("conda-activate-without-hook", step.line, (step.text.splitlines()[0],))
            return


def _index_from_driver(recipe: Recipe) -> Iterator[Hit]:
    """The wheel index chosen from what nvidia-smi or the driver says."""
    if recipe.kind not in ("script", "dockerfile"):
        return
    card = lowest(recipe)
    reads = next((n for n, line in enumerate(recipe.lines, 1) if "nvidia-smi" in line and "CUDA Version" in line), None)
    uses = any("$" in u and "whl/" in u for s in recipe.steps for u in s.indexes)
    if reads and (uses or re.search(r"whl/(cu)?\$", recipe.text)):
        yield Hit(
            "index-from-nvidia-smi",
            reads,
            (recipe.lines[reads - 1].strip(),),
            {"card": card.title, "capability": card.capability},
        )
    if card.major_minor >= (7, 5):
        return
    for step in recipe.steps:
        if "auto" in step.options.get("torch-backend", []) or step.env.get("UV_TORCH_BACKEND") == "auto":
            yield Hit(
                "torch-backend-auto",
                step.line,
                (step.text.splitlines()[0],),
                {"card": card.title, "capability": card.capability},
            )
            return


def _flags(recipe: Recipe) -> Iterator[Hit]:
    """Programs started with a dtype or a server that the card cannot run."""
    if recipe.kind not in ("script", "dockerfile"):
        return
    card = lowest(recipe)
    for step in recipe.steps:
        words = step.argv
        text = " ".join(words)
        match = _BF16.search(text)
        if match and card.major_minor < (8, 0):
            yield Hit("bf16-on-old-card", step.line, (match.group(0),), _flag(match.group(0), card))
        half = _FP16.search(text)
        if half and card.fp16_rate == "1/64":
            yield Hit("fp16-slow-on-card", step.line, (half.group(0),), _flag(half.group(0), card))
        if re.search(r"--attn[_-]impl\w*[= ]flash_attention_2", text):
            yield from _needs(step.line, step.text.splitlines()[0], "flash-attn", card)
        if words[:2] == ["vllm", "serve"] or "vllm.entrypoints" in text or "sglang.launch_server" in text:
            yield from _needs(step.line, step.text.splitlines()[0], "sglang" if "sglang" in text else "vllm", card)


def _needs(line: int | None, evidence: str, name: str, card: Card) -> Iterator[Hit]:
    """A library that the card cannot run."""
    row = floor(name)
    if row is None or card.major_minor >= row.major_minor:
        return
    values = {
        "title": row.title,
        "name": row.name,
        "minimum": row.minimum,
        "card": card.title,
        "capability": card.capability,
        "instead": row.instead_en,
        "instead_zh": row.instead_zh,
        "row_source": row.source,
    }
    yield Hit("package-needs-newer-card", line, (evidence,), values)


def check_compose(recipe: Recipe) -> Iterator[Hit]:
    """The images and commands of a compose file against the card."""
    card = lowest(recipe)
    services = recipe.data.get("services") if isinstance(recipe.data, dict) else None
    for name, service in (services if isinstance(services, dict) else {}).items():
        if not isinstance(service, dict):
            continue
        command = service.get("command") or ""
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        image = str(service.get("image") or "")
        line = recipe.line_of("services", name)
        server = re.search(r"\b(vllm|sglang)\b", f"{image} {text}")
        if server and "pascal" not in image:
            yield from _needs(line, f"image: {image}", server.group(1), card)
        match = _BF16.search(text)
        if match and card.major_minor < (8, 0):
            yield Hit("bf16-on-old-card", line, (match.group(0),), _flag(match.group(0), card))
        half = _FP16.search(text)
        if half and card.fp16_rate == "1/64":
            yield Hit("fp16-slow-on-card", line, (half.group(0),), _flag(half.group(0), card))


def _flag(text: str, card: Card) -> dict[str, str]:
    key, _, value = text.replace(" ", "=", 1).partition("=")
    return {"key": key, "value": value or "True", "card": card.title, "capability": card.capability}


def _apt(base: Base, steps: list[Step]) -> Iterator[Hit]:
    """apt without its lists, or waiting for an answer nobody gives."""
    if base.image not in _OFFICIAL or any(s.tool == "apt" and s.verb == "update" for s in steps[:1]):
        updated = base.image not in _OFFICIAL
    else:
        updated = False
    for step in steps:
        if step.tool != "apt":
            updated = updated or "apt-get update" in step.text or "apt update" in step.text
            continue
        if step.verb == "update":
            updated = True
        elif step.verb == "install" and step.requirements:
            if not updated and base.image in _OFFICIAL:
                yield Hit("apt-without-update", step.line, (step.text.splitlines()[0],), {"image": base.text})
                updated = True
            yes = step.flags & {"y", "yes", "assume-yes", "qq", "yq", "qy", "qqy", "yqq"}
            if not yes and "APT_GET_OPTS" not in step.text and not any("Assume-Yes" in s.text for s in steps):
                yield Hit("apt-without-yes", step.line, (step.text.splitlines()[0],))
