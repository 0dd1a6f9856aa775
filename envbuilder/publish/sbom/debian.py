"""Debian packages of an image: dpkg's status, its lists of files, the licences that machine-readable files name."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from envbuilder.publish.sbom.licences import debian_licence
from envbuilder.publish.sbom.model import Component, Kind, Package, System
from envbuilder.publish.sbom.purl import purl
from envbuilder.publish.sbom.reading import Reading

_STATUS = "var/lib/dpkg/status"
_INFO = "var/lib/dpkg/info/"


def system_of(reading: Reading) -> System:
    """The distribution by its os-release."""
    text = reading.text_of("etc/os-release") or reading.text_of("usr/lib/os-release")
    found = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        found[key.strip()] = value.strip().strip("\"'")
    return System(found.get("ID", ""), found.get("VERSION_ID", ""), found.get("PRETTY_NAME", ""))


def debian_packages(reading: Reading, system: System) -> Iterator[Package]:
    """The packages that dpkg has installed. Paths are as the image has them: links followed, diversions heeded."""
    from debian.deb822 import Packages

    diverted = _diversions(reading)
    for fields in Packages.iter_paragraphs(reading.texts.get(_STATUS, ""), use_apt_pkg=False):
        name, version, arch = fields.get("Package", ""), fields.get("Version", ""), fields.get("Architecture", "")
        # "install ok installed"; what was removed may leave its configuration behind, and then its list.
        if not name or not version or fields.get("Status", "").split()[-1:] != ["installed"]:
            continue
        source, _, source_version = fields.get("Source", name).partition(" ")
        component = Component(
            Kind.DEBIAN,
            name,
            version,
            purl("deb", name, version, namespace=system.id or "debian", arch=arch, distro=_distro(system)),
            licences=_licences(reading, name),
            supplier=fields.get("Maintainer", ""),
            source=(source, source_version.strip("()") or version),
            properties={"architecture": arch},
        )
        listed = reading.texts.get(f"{_INFO}{name}:{arch}.list") or reading.texts.get(f"{_INFO}{name}.list", "")
        paths = (reading.real(_moved(line, name, diverted)) for line in listed.splitlines() if len(line) > 1)
        yield Package(component, tuple(paths))


def listed_names(reading: Reading) -> Iterator[tuple[str, list[str]]]:
    """(name of a package, its paths) by the lists alone, whatever the status says."""
    for path, text in reading.texts.items():
        if path.startswith(_INFO) and path.endswith(".list"):
            yield path[len(_INFO) : -len(".list")].partition(":")[0], text.splitlines()


def _distro(system: System) -> str:
    return f"{system.id}-{system.version}" if system.id and system.version else ""


def _diversions(reading: Reading) -> dict[str, tuple[str, str]]:
    """Path -> (where other packages' file of that path went, the package whose own stays)."""
    lines = reading.texts.get("var/lib/dpkg/diversions", "").splitlines()
    return {lines[n]: (lines[n + 1], lines[n + 2]) for n in range(0, len(lines) - 2, 3)}


def _moved(path: str, package: str, diverted: dict[str, tuple[str, str]]) -> str:
    other, keeper = diverted.get(path, (path, package))
    return path if package == keeper else other


def _licences(reading: Reading, name: str) -> tuple[str, ...]:
    """Every licence of the package's copyright file, where that is machine-readable (DEP-5)."""
    import logging

    from debian.copyright import Copyright, MachineReadableFormatError, NotMachineReadableError

    text = reading.text_of(posixpath.join("usr/share/doc", name, "copyright"))
    if not text:
        return ()
    # It tells the log of every old spelling of the format's address.
    logging.getLogger("debian.copyright").setLevel(logging.ERROR)
    try:
        parsed = Copyright(text.splitlines(), strict=False)
        named = [p.license.synopsis for p in parsed.all_files_paragraphs() if p.license]
    except (NotMachineReadableError, MachineReadableFormatError, ValueError):
        return ()
    return tuple(sorted({debian_licence(one) for one in named if one}))
