"""Shell commands read as what they install: pip, uv, conda and its kin, apt, git, setup.py."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.model import Recipe, Requirement, Step, Variable
from envbuilder.diagnose.lint.requirement import conda_requirement, pip_requirement
from envbuilder.diagnose.lint.shell import Assignment, Command, expand, parse

_WRAPPERS = {"sudo", "env", "time", "nohup", "exec", "command", "xargs", "stdbuf", "nice", "ionice", "retry", "eval"}
_CONDAS = {"conda", "mamba", "micromamba"}
# Options of pip and uv that take a value in the next word.
_PIP_VALUES = {
    "-i": "index-url",
    "--index-url": "index-url",
    "--default-index": "index-url",
    "--index": "index",
    "--extra-index-url": "extra-index-url",
    "-f": "find-links",
    "--find-links": "find-links",
    "-r": "requirement",
    "--requirement": "requirement",
    "--requirements": "requirement",
    "-c": "constraint",
    "--constraint": "constraint",
    "--constraints": "constraint",
    "--override": "constraint",
    "-e": "editable",
    "--editable": "editable",
    "--config-settings": "config-settings",
    "--config-setting": "config-settings",
    "-C": "config-settings",
    "--global-option": "global-option",
    "--build-option": "build-option",
    "--install-option": "global-option",
    "--no-binary": "no-binary",
    "--only-binary": "only-binary",
    "-t": "target",
    "--target": "target",
    "--root": "root",
    "--prefix": "prefix",
    "--timeout": "timeout",
    "--retries": "retries",
    "--python": "python",
    "-p": "python",
    "--trusted-host": "trusted-host",
    "--proxy": "proxy",
    "--cert": "cert",
    "--cache-dir": "cache-dir",
    "--progress-bar": "progress-bar",
    "--platform": "platform",
    "--python-version": "python-version",
    "-w": "wheel-dir",
    "--wheel-dir": "wheel-dir",
    "--torch-backend": "torch-backend",
    "--index-strategy": "index-strategy",
    "--exclude-newer": "exclude-newer",
    "--upgrade-package": "upgrade-package",
    "-P": "upgrade-package",
    "-d": "dest",
    "--dest": "dest",
    "--log": "log",
    "--src": "src",
    "--group": "group",
    "--extra": "extra",
    "--upgrade-strategy": "upgrade-strategy",
    "--link-mode": "link-mode",
    "--root-user-action": "root-user-action",
    "--no-build-isolation-package": "no-build-isolation-package",
    "--report": "report",
}
_CONDA_VALUES = {
    "-n": "name",
    "--name": "name",
    "-p": "prefix",
    "--prefix": "prefix",
    "-c": "channel",
    "--channel": "channel",
    "-f": "file",
    "--file": "file",
    "--solver": "solver",
    "-r": "root",
    "--root-prefix": "root",
    "--platform": "platform",
    "--subdir": "platform",
    "--experimental-solver": "solver",
}
_APT_VALUES = {"-o", "-t", "--target-release", "-c"}


def read_script(
    recipe: Recipe, text: str, first_line: int, env: dict[str, str], stage: int = -1, cwd: str = ""
) -> None:
    """Add the steps and variables of shell text to ``recipe``. ``env`` holds what is known before and is updated."""
    for item in parse(text, first_line):
        if isinstance(item, Assignment):
            value = expand(item.value, env)
            env[item.name] = value
            recipe.env.append(Variable(item.name, value, item.line, "export" if item.exported else "shell", stage))
            continue
        for step in steps_of(item, env):
            step.stage = stage
            step.cwd = _join(cwd, step.cwd)
            recipe.steps.append(step)


def _join(cwd: str, path: str) -> str:
    return path if path.startswith(("/", "$", "~")) else "/".join(part for part in (cwd.rstrip("/"), path) if part)


def steps_of(command: Command, env: dict[str, str]) -> Iterator[Step]:
    """The step a command is; none when it is nothing lint knows."""
    words = [expand(word, env) for word in command.argv]
    lines = list(command.word_lines)
    scope = {**env, **{k: expand(v, env) for k, v in command.assignments.items()}}
    words, lines = _unwrap(words, lines, scope)
    if not words:
        return
    # An expansion that stands for several words ("$PIP_INSTALL", "$PKGS") is several words to the shell.
    split: list[str] = []
    split_lines: list[int] = []
    for position, (word, line) in enumerate(zip(words, lines, strict=True)):
        raw = command.argv[len(command.argv) - len(words) + position] if len(words) <= len(command.argv) else word
        parts = word.split() if raw.startswith("$") and " " in word else [word]
        split += parts
        split_lines += [line] * len(parts)
    words, lines = split, split_lines
    step = _tool(words, lines, command)
    if step is None:
        step = Step("other", command.line, command.text)
    step.env = scope
    step.argv = words
    step.cwd = expand(command.cwd, env)
    step.redirects = command.redirects
    step.last_line = command.last_line
    yield step


def _unwrap(words: list[str], lines: list[int], env: dict[str, str]) -> tuple[list[str], list[int]]:
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if name in _WRAPPERS:
            words, lines = words[1:], lines[1:]
            while words and (words[0].startswith("-") or re.match(r"^[A-Za-z_]\w*=", words[0])):
                key, eq, value = words[0].partition("=")
                if eq and not key.startswith("-"):
                    env[key] = value
                words, lines = words[1:], lines[1:]
        elif name in _CONDAS and len(words) > 1 and words[1] == "run":
            rest = 2
            while rest < len(words) and words[rest].startswith("-"):
                rest += 2 if words[rest] in _CONDA_VALUES else 1
            words, lines = words[rest:], lines[rest:]
        else:
            break
    return words, lines


def _tool(words: list[str], lines: list[int], command: Command) -> Step | None:
    name = words[0].rsplit("/", 1)[-1]
    rest, places = words[1:], lines[1:]
    if re.fullmatch(r"python(\d(\.\d+)?)?|\$\{?(PYTHON|PY|PYTHON_BIN|PYTHON3)\}?|pypy3", name):
        flags = 0
        while flags < len(rest) and rest[flags].startswith("-") and rest[flags] != "-m":
            flags += 2 if rest[flags] in ("-W", "-X") else 1
        rest, places = rest[flags:], places[flags:]
        if rest[:2] == ["-m", "pip"]:
            return _pip(rest[2:], places[2:], command)
        if rest[:2] == ["-m", "uv"]:
            return _uv(rest[2:], places[2:], command)
        if rest and rest[0].endswith("setup.py"):
            return Step(
                "setup.py",
                command.line,
                command.text,
                verb=rest[1] if len(rest) > 1 else "",
                options={"script": [rest[0]], "args": rest[1:]},
            )
        return None
    if re.fullmatch(r"pip(\d(\.\d+)?)?|\$\{?PIP\d?\}?", name):
        return _pip(rest, places, command)
    if name == "uv":
        return _uv(rest, places, command)
    if name in _CONDAS:
        return _conda(name, rest, places, command)
    if name in ("apt-get", "apt", "aptitude"):
        return _apt(rest, places, command)
    if name == "git" and "clone" in rest:
        return _git(rest, command)
    return None


def _uv(words: list[str], lines: list[int], command: Command) -> Step | None:
    if words[:1] == ["pip"]:
        return _pip(words[1:], lines[1:], command)
    if words[:1] == ["add"]:
        return _pip(["install", *words[1:]], [lines[0], *lines[1:]], command)
    return None


def _pip(words: list[str], lines: list[int], command: Command) -> Step | None:
    while words and words[0].startswith("-"):
        jump = 2 if words[0] in _PIP_VALUES and "=" not in words[0] else 1
        words, lines = words[jump:], lines[jump:]
    if not words or words[0] not in ("install", "wheel", "download", "uninstall", "sync"):
        return None
    step = Step("pip", command.line, command.text, verb=words[0])
    position = 1
    while position < len(words):
        word, line = words[position], lines[position]
        name, eq, value = word.partition("=")
        if name in _PIP_VALUES and word.startswith("-"):
            if not eq:
                position += 1
                value = words[position] if position < len(words) else ""
            _pip_option(step, _PIP_VALUES[name], value.strip("\"'"), line)
        elif word.startswith("-"):
            if re.fullmatch(r"-[a-zA-Z]{2,}", word) and not word.startswith("--"):
                _bundle(step, word)
            else:
                step.flags.add({"-U": "upgrade", "-q": "quiet", "-v": "verbose"}.get(name, name.lstrip("-")))
        else:
            requirement = pip_requirement(word, line)
            if requirement is not None:
                step.requirements.append(requirement)
            elif re.match(r"^[A-Za-z][\w.-]*=\d[^=]*$", word):
                step.requirements.append(Requirement(word.partition("=")[0].lower(), "", word, line))
            elif word not in (".",):
                step.requirements.append(Requirement("", "", word, line, url=word))
        position += 1
    return step


def _bundle(step: Step, word: str) -> None:
    """``-Uq`` and ``-rfile``: letters together, or a value attached to its letter."""
    if word[:2] in ("-r", "-c", "-e", "-f", "-i"):
        _pip_option(step, _PIP_VALUES[word[:2]], word[2:], step.line)
        return
    for letter in word[1:]:
        step.flags.add({"U": "upgrade", "q": "quiet", "v": "verbose"}.get(letter, letter))


def _pip_option(step: Step, option: str, value: str, line: int) -> None:
    step.options.setdefault(option, []).append(value)
    if option == "index-url":
        step.index_url = value
    elif option in ("extra-index-url", "index"):
        step.extra_index.append(value.rpartition("=")[2] if option == "index" else value)
    elif option == "find-links":
        step.find_links.append(value)
    elif option == "requirement":
        step.files.append(value)
    elif option == "constraint":
        step.constraints.append(value)
    elif option == "editable":
        step.editable.append(value)
        requirement = pip_requirement(value, line)
        if requirement is not None:
            step.requirements.append(requirement)


def _conda(name: str, words: list[str], lines: list[int], command: Command) -> Step | None:
    if words[:1] == ["env"] and len(words) > 1:
        words, lines = [f"env-{words[1]}", *words[2:]], lines[1:]
    while words and words[0].startswith("-"):
        words, lines = words[1:], lines[1:]
    if not words or words[0] not in ("install", "create", "update", "env-create", "env-update", "upgrade", "config"):
        return None
    step = Step("conda", command.line, command.text, verb=words[0], options={"program": [name]})
    position = 1
    while position < len(words):
        word, line = words[position], lines[position]
        option, eq, value = word.partition("=")
        if option in _CONDA_VALUES and word.startswith("-"):
            if not eq:
                position += 1
                value = words[position] if position < len(words) else ""
            key = _CONDA_VALUES[option]
            step.options.setdefault(key, []).append(value)
            if key == "channel":
                step.channels.append(value)
            elif key == "file":
                step.files.append(value)
        elif word.startswith("-"):
            step.flags.add(word.lstrip("-"))
        elif step.verb != "config":
            requirement = conda_requirement(word, line)
            if requirement is not None:
                step.requirements.append(requirement)
        position += 1
    return step


def _apt(words: list[str], lines: list[int], command: Command) -> Step | None:
    found = [w for w in words if not w.startswith("-")]
    if not found or found[0] not in ("install", "upgrade", "dist-upgrade", "update", "build-dep"):
        return None
    step = Step("apt", command.line, command.text, verb=found[0])
    position, seen = 0, False
    while position < len(words):
        word = words[position]
        if word in _APT_VALUES:
            position += 1
        elif word.startswith("-"):
            step.flags.add(word.lstrip("-"))
        elif not seen:
            seen = True
        else:
            name, _, version = word.partition("=")
            step.requirements.append(Requirement(name, f"=={version}" if version else "", word, lines[position]))
        position += 1
    return step


def _git(words: list[str], command: Command) -> Step:
    after = words[words.index("clone") + 1 :]
    address = next((w for w in after if re.match(r"^(https?|git|ssh)://|^git@", w)), "")
    bare = [w for w in after if not w.startswith("-") and w != address]
    branch = ""
    for position, word in enumerate(after):
        if word in ("-b", "--branch") and position + 1 < len(after):
            branch = after[position + 1]
        elif word.startswith("--branch="):
            branch = word.partition("=")[2]
    folder = next((w for w in bare if w not in (branch, "1")), "")
    name = re.sub(r"\.git$", "", address.rstrip("/").rsplit("/", 1)[-1])
    return Step(
        "git",
        command.line,
        command.text,
        verb="clone",
        options={"url": [address], "branch": [branch] if branch else [], "folder": [folder or name]},
    )
