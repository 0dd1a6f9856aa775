"""Dockerfiles, read with BuildKit's own parser; RUN lines go on to the shell parser with their line numbers."""

from __future__ import annotations

import re
from typing import Any

from envbuilder.diagnose.lint.commands import read_script
from envbuilder.diagnose.lint.model import Base, Hit, Recipe, Stage, Variable
from envbuilder.diagnose.lint.shell import expand

_INSTRUCTIONS = {
    "add",
    "arg",
    "cmd",
    "copy",
    "entrypoint",
    "env",
    "expose",
    "from",
    "healthcheck",
    "label",
    "maintainer",
    "onbuild",
    "run",
    "shell",
    "stopsignal",
    "user",
    "volume",
    "workdir",
}
_NVIDIA = re.compile(r"^(\d+\.\d+(?:\.\d+)?)(?:-cudnn(\d*))?(?:-(base|runtime|devel))?(?:-([a-z]+[\d.]*))?$")
_PYTORCH = re.compile(r"^(\d+\.\d+(?:\.\d+)?)-cuda(\d+\.\d+)-cudnn(\d+)-(runtime|devel)$")
# Bases that set CUDA_VERSION themselves, so that a RUN sees it without an ARG.
SETS_CUDA_VERSION = ("nvidia/cuda", "nvcr.io/nvidia/", "pytorch/pytorch")


def read(recipe: Recipe) -> None:
    """Fill ``recipe`` with the stages, variables and steps of its Dockerfile."""
    import dockerfile

    try:
        commands = dockerfile.parse_string(recipe.text)
    except dockerfile.GoParseError as error:
        message = str(error)
        line = re.search(r"line (\d+)", message)
        if recipe.text.strip():
            recipe.hits.append(
                Hit("dockerfile-unparsable", int(line.group(1)) if line else None, values={"message": message})
            )
        return
    _Reader(recipe).read(commands)


class _Reader:
    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.lines = recipe.lines
        self.globals: dict[str, str] = {}
        self.env: dict[str, str] = {}
        self.kept: dict[int, dict[str, str]] = {}
        self.cwd = ""
        self.stage = -1

    def read(self, commands: Any) -> None:
        for command in commands:
            # A backslash with nothing after it comes as a command without a name.
            name = (command.cmd or "").lower()
            if name not in _INSTRUCTIONS:
                # One is enough: what follows an instruction nobody knows is often no Dockerfile at all.
                if not any(hit.rule == "dockerfile-unparsable" for hit in self.recipe.hits):
                    shown = command.original.splitlines()[0][:120] if command.original else command.cmd or "\\"
                    values = {"message": f"unknown instruction: {command.cmd or shown}"}
                    self.recipe.hits.append(Hit("dockerfile-unparsable", command.start_line, (shown,), values))
                continue
            handler = getattr(self, f"on_{name}", None)
            if handler:
                handler(command)

    def on_arg(self, command: Any) -> None:
        for word in command.value:
            name, eq, value = word.partition("=")
            value = value.strip("\"'")
            known = self.globals if self.stage < 0 else self.env
            if self.stage >= 0 and not eq:
                value = self.globals.get(name, "")
                if name in self.globals:
                    self.env[name] = value
            else:
                value = expand(value, {**self.globals, **known})
                known[name] = value
            self.recipe.env.append(Variable(name, value, self._line_of(command, name), "ARG", self.stage))

    def on_from(self, command: Any) -> None:
        words = [w for w in command.value if w]
        text = words[0] if words else ""
        name = words[2].lower() if len(words) > 2 and words[1].lower() == "as" else ""
        index = len(self.recipe.stages)
        base = base_image(expand(text, self.globals), command.start_line)
        parent = next((s.index for s in self.recipe.stages if s.name == base.text.lower()), None)
        self.recipe.stages.append(Stage(index, name, base, parent))
        self.stage = index
        self.env = dict(self.kept.get(parent, {})) if parent is not None else {}
        if base.cuda and base.image in SETS_CUDA_VERSION:
            self.env["CUDA_VERSION"] = base.tag.split("-")[0] if base.image == "nvidia/cuda" else base.cuda
        self.kept[index] = self.env
        self.cwd = ""

    def on_env(self, command: Any) -> None:
        values = list(command.value)
        for name, value in zip(values[::2], values[1::2], strict=False):
            filled = expand(_unquote(value), self.env)
            self.env[name] = filled
            self.recipe.env.append(Variable(name, filled, self._line_of(command, name), "ENV", self.stage))

    def on_workdir(self, command: Any) -> None:
        path = expand(_unquote(command.value[0]), self.env) if command.value else ""
        self.cwd = path if path.startswith(("/", "$")) else f"{self.cwd}/{path}"

    def on_copy(self, command: Any) -> None:
        for flag in command.flags:
            if flag.startswith("--from=") and self.stage >= 0:
                source = flag.partition("=")[2].lower()
                for stage in self.recipe.stages:
                    if source in (stage.name, str(stage.index)):
                        self.recipe.stages[self.stage].copies_from.append(stage.index)

    def on_run(self, command: Any) -> None:
        env = dict(self.env)
        if command.json:
            text = " ".join(f'"{word}"' if " " in word else word for word in command.value)
            read_script(self.recipe, text, command.start_line, env, self.stage, self.cwd)
            return
        if command.heredocs and command.value and str(command.value[0]).lstrip().startswith("<<"):
            body = "\n".join(h.content for h in command.heredocs[:1])
            first = command.heredocs[0].content.split("\n", 1)[0]
            if not first.startswith("#!") or "sh" in first:
                read_script(self.recipe, body, command.start_line + 1, env, self.stage, self.cwd)
            return
        read_script(self.recipe, self._shell_text(command), command.start_line, env, self.stage, self.cwd)

    def on_cmd(self, command: Any) -> None:
        from envbuilder.diagnose.lint.model import Step

        words = [str(v) for v in command.value]
        text = " ".join(words)
        self.recipe.steps.append(
            Step("start", command.start_line, text, argv=words, env=dict(self.env), stage=self.stage)
        )

    on_entrypoint = on_cmd

    def _shell_text(self, command: Any) -> str:
        """The source of a RUN, so that lines keep their numbers: comment and empty lines become continuations."""
        source = self.lines[command.start_line - 1 : command.end_line]
        if not source:
            return ""
        head = re.sub(r"^\s*RUN\s+((--\S+|\\$)\s*)*", "", source[0], flags=re.IGNORECASE)
        body = ["\\" if not line.strip() or line.lstrip().startswith("#") else line for line in source[1:]]
        # A flag may stand on a line of its own: "RUN --mount=... \".
        body = [re.sub(r"^\s*--(mount|network|security)=\S+", "", line) for line in body]
        return "\n".join([head, *body])

    def _line_of(self, command: Any, name: str) -> int:
        for number in range(command.start_line, command.end_line + 1):
            if number <= len(self.lines) and re.search(rf"\b{re.escape(name)}\b", self.lines[number - 1]):
                return number
        return int(command.start_line)


def _unquote(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


def base_image(text: str, line: int) -> Base:
    """What is known of an image by its name: CUDA, cuDNN, flavour, distribution, torch."""
    name, _, digest = text.partition("@")
    head, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        head, tag = name, ""
    base = Base(text, line, head.removeprefix("docker.io/").removeprefix("library/"), tag, digest)
    if base.image in ("nvidia/cuda", "nvcr.io/nvidia/cuda"):
        match = _NVIDIA.match(tag)
        if match:
            base.cuda = ".".join(match.group(1).split(".")[:2])
            base.cudnn = (match.group(2) or "") if "-cudnn" in tag else ""
            base.flavour = match.group(3) or ""
            base.distro = match.group(4) or ""
        base.image = "nvidia/cuda"
    elif base.image == "pytorch/pytorch":
        match = _PYTORCH.match(tag)
        if match:
            base.torch, base.cuda, base.cudnn, base.flavour = match.groups()
    elif base.image in ("ubuntu", "debian", "centos"):
        word = tag.split("-")[0]
        base.distro = word if word and word[0].isalpha() else f"{base.image}{word}"
    elif base.image == "python":
        found = re.search(r"(bullseye|bookworm|trixie|buster)", tag)
        base.distro = found.group(1) if found else ""
    else:
        _guess(base)
    return base


def _guess(base: Base) -> None:
    """Other people's images say their CUDA and torch in the tag; take it where it is plain."""
    cuda = re.search(r"(?:cuda|cu)[-_]?(\d{2})\.?(\d)(?:\.\d+)?(?!\d)", base.tag)
    if cuda:
        base.cuda = f"{cuda.group(1)}.{cuda.group(2)}"
    torch = re.search(r"(?:torch|pytorch)[-_]?(\d+\.\d+\.\d+)", base.tag)
    if torch:
        base.torch = torch.group(1)
    flavour = re.search(r"\b(runtime|devel)\b", base.tag)
    if flavour:
        base.flavour = flavour.group(1)
    distro = re.search(r"(ubuntu\d\d\.\d\d|focal|jammy|noble|bookworm|bullseye)", base.tag)
    if distro:
        base.distro = distro.group(1)
