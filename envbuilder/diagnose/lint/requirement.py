"""One requirement out of its text: pip's syntax and conda's."""

from __future__ import annotations

import re

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.utils import canonicalize_name, parse_wheel_filename

from envbuilder.diagnose.lint.model import Requirement

_VCS = re.compile(r"^(?:git|hg|svn|bzr)\+|^git://|^(?:https?|file)://|^[./~]|^/|^\$")
_EGG = re.compile(r"[#&]egg=([A-Za-z0-9._-]+)")
_CONDA = re.compile(
    r"^(?:(?P<channel>[\w./:-]+)::)?(?P<name>[A-Za-z0-9_][\w.-]*)"
    r"(?:\[(?P<bracket>[^\]]*)\])?\s*(?P<rest>.*)$"
)
_LOOSE = re.compile(r"^([A-Za-z0-9][\w.-]*?)\s*(?:\[([^\]]*)\])?\s*((?:===?|[<>~!]=|[<>]).*)?$")


def pip_requirement(text: str, line: int) -> Requirement | None:
    """The requirement ``text`` states, or None when it states none.

    A version written with an expansion (``torch==$V``) is kept as written.
    """
    raw = text.strip()
    hashed = "--hash=" in raw
    body = re.split(r"\s+--(?:hash|config-settings?|global-option)\b", raw)[0].strip().rstrip("\\").strip()
    if not body:
        return None
    if _VCS.match(body):
        egg = _EGG.search(body)
        name = egg.group(1) if egg else _name_of_address(body)
        return Requirement(canonicalize_name(name) if name else "", "", raw, line, url=body, hashed=hashed)
    if body.endswith(".whl") and "@" not in body:
        return _wheel(body, raw, line)
    try:
        parsed = Parsed(body)
    except InvalidRequirement:
        return _loose(body, raw, line, hashed)
    return Requirement(
        canonicalize_name(parsed.name),
        str(parsed.specifier),
        raw,
        line,
        url=parsed.url or "",
        extras=tuple(sorted(parsed.extras)),
        marker=str(parsed.marker) if parsed.marker else "",
        hashed=hashed,
    )


def _loose(body: str, raw: str, line: int, hashed: bool) -> Requirement | None:
    at = re.match(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*@\s*(\S+)", body)
    if at:
        return Requirement(canonicalize_name(at.group(1)), "", raw, line, url=at.group(2), hashed=hashed)
    match = _LOOSE.match(body.partition(";")[0].strip())
    if not match:
        return None
    extras = tuple(sorted(e.strip() for e in (match.group(2) or "").split(",") if e.strip()))
    specifier = (match.group(3) or "").replace(" ", "")
    return Requirement(canonicalize_name(match.group(1)), specifier, raw, line, extras=extras, hashed=hashed)


def _wheel(body: str, raw: str, line: int) -> Requirement:
    filename = body.rsplit("/", 1)[-1].replace("%2B", "+")
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except ValueError:
        parts = filename.split("-")
        return Requirement(canonicalize_name(parts[0]), f"=={parts[1]}" if len(parts) > 1 else "", raw, line, url=body)
    return Requirement(str(name), f"=={version}", raw, line, url=body)


def _name_of_address(address: str) -> str:
    path = re.sub(r"[#?].*$", "", address)
    if path.split("/")[-1].endswith(".whl"):
        return _wheel(path, path, 0).name
    match = re.search(r"/([^/@]+?)(?:\.git)?(?:@[^/]*)?/?$", path)
    return match.group(1) if match and "+" in address[:5] else ""


def conda_requirement(text: str, line: int) -> Requirement | None:
    """The requirement of a conda spec: ``conda-forge::pytorch=2.5.1=*cuda118*``, ``python >=3.10,<3.11``."""
    raw = text.strip()
    match = _CONDA.match(raw)
    if not match:
        return None
    rest = match.group("rest").strip()
    specifier, build = rest, ""
    if rest:
        parts = rest.split()
        if len(parts) > 1 and not re.match(r"[<>=!~,|]", parts[1]):
            specifier, build = parts[0], parts[1]
        else:
            specifier = rest.replace(" ", "")
            fuzzy = re.match(r"^(==?)([^=,<>|]+)=([^=]+)$", specifier)
            if fuzzy:
                specifier, build = fuzzy.group(1) + fuzzy.group(2), fuzzy.group(3)
    bracket = match.group("bracket") or ""
    inner = re.search(r"build\s*=\s*[\"']?([^\"',]+)", bracket)
    version = re.search(r"version\s*=\s*[\"']?([^\"']+)", bracket)
    if version and not specifier:
        specifier = version.group(1) if re.match(r"[<>=!~]", version.group(1)) else f"={version.group(1)}"
    return Requirement(
        canonicalize_name(match.group("name")),
        specifier,
        raw,
        line,
        channel=match.group("channel") or "",
        build=inner.group(1) if inner else build,
        conda=True,
    )
