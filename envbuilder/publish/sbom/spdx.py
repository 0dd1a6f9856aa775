"""Contents as an SPDX 2.3 document (JSON). The same contents give the same bytes."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from envbuilder import __version__
from envbuilder.errors import InputError
from envbuilder.publish.sbom.cyclonedx import serial_of
from envbuilder.publish.sbom.licences import licensing, spdx_expression
from envbuilder.publish.sbom.model import Component, Contents, Kind

if TYPE_CHECKING:
    from spdx_tools.spdx.model import Document, Package

MEDIA_TYPE = "application/spdx+json"
_DOCUMENT = "SPDXRef-DOCUMENT"
_IMAGE = "SPDXRef-image"
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9.]+")


def spdx_text(contents: Contents) -> str:
    """The document, with a final newline. Raises InputError when what the image holds makes no valid one."""
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
    from spdx_tools.spdx.writer.json.json_writer import write_document_to_stream

    document = _document(contents)
    faults = validate_full_spdx_document(document)
    if faults:
        raise InputError(
            "the contents of this image cannot be written as SPDX",
            cure="Take the CycloneDX document, and build the image anew: its package databases are damaged.",
            detail="\n".join(fault.validation_message for fault in faults[:5]),
        )
    out = io.StringIO()
    write_document_to_stream(document, out, validate=False)
    return out.getvalue() + "\n"


def _document(contents: Contents) -> Document:
    from spdx_tools.spdx.model import Actor, ActorType, CreationInfo, Document, Relationship, RelationshipType

    own = _own_names(contents.components)
    packages = [_package(component, own) for component in contents.components]
    relationships = [Relationship(_DOCUMENT, RelationshipType.DESCRIBES, _IMAGE)]
    relationships += [Relationship(_IMAGE, RelationshipType.CONTAINS, package.spdx_id) for package in packages]
    created = datetime.fromtimestamp(contents.time, tz=timezone.utc).replace(tzinfo=None)
    info = CreationInfo(
        spdx_version="SPDX-2.3",
        spdx_id=_DOCUMENT,
        name=contents.name,
        # The form the specification names for whoever publishes no documents at an address of his own.
        document_namespace=f"https://spdx.org/spdxdocs/{_slug(contents.name)}-{serial_of(contents)}",
        creators=[Actor(ActorType.TOOL, f"envbuilder-{__version__}")],
        created=created,
        document_comment=f"lock {contents.lock}" if contents.lock else None,
    )
    return Document(
        info,
        packages=[_image(contents), *packages],
        relationships=relationships,
        extracted_licensing_info=_extracted(own),
    )


def _image(contents: Contents) -> Package:
    from spdx_tools.spdx.model import Checksum, ChecksumAlgorithm, Package, PackagePurpose, SpdxNoAssertion

    digest = contents.digest.removeprefix("sha256:")
    return Package(
        _IMAGE,
        contents.name,
        SpdxNoAssertion(),
        version=contents.digest or None,
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, digest)] if digest else [],
        license_concluded=SpdxNoAssertion(),
        license_declared=SpdxNoAssertion(),
        copyright_text=SpdxNoAssertion(),
        primary_package_purpose=PackagePurpose.CONTAINER,
        summary=contents.system.title or None,
    )


def _package(component: Component, own: dict[str, str]) -> Package:
    from spdx_tools.spdx.model import (
        Actor,
        ActorType,
        Checksum,
        ChecksumAlgorithm,
        ExternalPackageRef,
        ExternalPackageRefCategory,
        Package,
        PackagePurpose,
        SpdxNoAssertion,
    )

    container = component.kind is Kind.IMAGE
    source, version = component.source
    patched = f"changed by envbuilder patch: {', '.join(component.patched)}" if component.patched else None
    return Package(
        _reference(component),
        component.name,
        _location(component) or SpdxNoAssertion(),
        version=component.version or None,
        file_name=component.properties.get("file"),
        supplier=Actor(ActorType.ORGANIZATION, component.supplier) if component.supplier else SpdxNoAssertion(),
        files_analyzed=False,
        checksums=[Checksum(ChecksumAlgorithm.SHA256, component.sha256)] if component.sha256 else [],
        source_info=f"built from source package {source} {version}" if source else None,
        license_concluded=SpdxNoAssertion(),
        license_declared=_licence(component, own) if component.licences else SpdxNoAssertion(),
        copyright_text=SpdxNoAssertion(),
        comment=patched,
        external_references=[
            ExternalPackageRef(ExternalPackageRefCategory.PACKAGE_MANAGER, "purl", component.purl)
        ],
        primary_package_purpose=PackagePurpose.CONTAINER if container else PackagePurpose.LIBRARY,
    )  # fmt: skip


def _location(component: Component) -> str:
    facts = component.properties
    return f"git+{facts['repository']}@{facts['commit']}" if "commit" in facts else ""


def _licence(component: Component, own: dict[str, str]) -> Any:
    parsed = [licensing().parse(spdx_expression(one) or own[one]) for one in component.licences]
    return licensing().AND(*parsed) if len(parsed) > 1 else parsed[0]


def _own_names(components: Iterable[Component]) -> dict[str, str]:
    """A LicenseRef for every licence that is no SPDX expression."""
    names = sorted({one for c in components for one in c.licences if not spdx_expression(one)})
    return {name: f"LicenseRef-{_slug(name)}-{_short(name)}" for name in names}


def _extracted(own: dict[str, str]) -> list[Any]:
    from spdx_tools.spdx.model import ExtractedLicensingInfo

    said = "The package names this licence; its text is in the package."
    return [ExtractedLicensingInfo(ref, extracted_text=said, license_name=name) for name, ref in own.items()]


def _reference(component: Component) -> str:
    return f"SPDXRef-{component.kind.value}-{_slug(component.name)}-{_short(component.purl)}"


def _slug(text: str) -> str:
    return _NOT_ALLOWED.sub("-", text).strip("-")[:60] or "x"


def _short(text: str) -> str:
    """Tells two names apart that are one when written with the characters SPDX allows."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]
