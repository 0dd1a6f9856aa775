"""``locks/NAME.requirements.txt``: the Python half of a lock, one file per package, readable by pip and uv.

Above each requirement a comment names the very file, its size and, where there are any, its index and group::

    # accelerate-1.10.1-py3-none-any.whl, 374909 bytes
    accelerate==1.10.1 --hash=sha256:3621cff6...
"""

from __future__ import annotations

import re

from pydantic import ValidationError

from envbuilder.errors import InputError, Place
from envbuilder.lock.checksum import seal
from envbuilder.lock.model import PythonArtifact
from envbuilder.lock.suites import base_glibc
from envbuilder.stack.model import Stack

_FILE = re.compile(
    r"^# (?P<filename>[^\s,]+)(?:, (?P<size>\d+) bytes)?(?:, index (?P<index>[^\s,]+))?(?:, group (?P<group>[^\s,]+))?$"
)
_REQUIREMENT = re.compile(r"^(?P<name>[^\s=]+)==(?P<version>\S+) --hash=sha256:(?P<sha256>\S+)$")


def requirements_text(stack: Stack, artifacts: tuple[PythonArtifact, ...]) -> str:
    """The text of the file. Artifacts are sorted by name, so the same set gives the same bytes."""
    header = [
        f"The Python half of the lock of {stack.name}: for each package the very file that is installed.",
        f"Written by `envbuilder lock {stack.name}`; an edit by hand is noticed. Where a file comes from is for the",
        "client's own index settings to say.",
        about(stack).removeprefix("# "),
    ]
    return seal(header, "\n".join(_entry(a) for a in sorted(artifacts, key=lambda a: a.name)) + "\n")


def about(stack: Stack) -> str:
    """The comment line that says what the files fit and up to which day they were considered."""
    target = f"Python {stack.python.version}, Linux x86_64, glibc {base_glibc(stack)}."
    return f"# {target} Uploads before {stack.python.cutoff}."


def _entry(artifact: PythonArtifact) -> str:
    about = [artifact.filename]
    if artifact.size is not None:
        about.append(f"{artifact.size} bytes")
    if artifact.index:
        about.append(f"index {artifact.index}")
    if artifact.group:
        about.append(f"group {artifact.group}")
    return f"# {', '.join(about)}\n{artifact.name}=={artifact.version} --hash=sha256:{artifact.sha256}"


def parse_requirements(text: str, file: str) -> tuple[PythonArtifact, ...]:
    """The artifacts of the file. Raises InputError naming the line that is not understood."""
    artifacts: list[PythonArtifact] = []
    above = None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line or line.startswith("#"):
            above = _FILE.match(line)
            continue
        requirement = _REQUIREMENT.match(line)
        if requirement is None or above is None:
            raise InputError(
                "not a line of a lock: `name==version --hash=sha256:...`, its file named in the comment above",
                place=Place(file, number),
                cure="Lock the stack anew: envbuilder lock STACK",
            )
        artifacts.append(_artifact({**above.groupdict(), **requirement.groupdict()}, Place(file, number)))
        above = None
    return tuple(artifacts)


def _artifact(fields: dict[str, str | None], place: Place) -> PythonArtifact:
    try:
        return PythonArtifact.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(
            f"{'.'.join(map(str, first['loc']))}: {first['msg']}",
            place=place,
            cure="Lock the stack anew: envbuilder lock STACK",
        ) from None
