"""Contents as a CycloneDX 1.6 document (JSON). The same contents give the same bytes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from envbuilder import __version__
from envbuilder.publish.sbom.licences import spdx_expression
from envbuilder.publish.sbom.model import NOT_KNOWN, Component, Contents, Kind

if TYPE_CHECKING:
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component as Described
    from cyclonedx.model.license import License

MEDIA_TYPE = "application/vnd.cyclonedx+json"
# Names of our own properties; the taxonomy of CycloneDX wants a prefix that is the tool's.
_PREFIX = "envbuilder:"


def cyclonedx_text(contents: Contents) -> str:
    """The document, with a final newline."""
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    text: str = make_outputter(_bom(contents), OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    return text + "\n"


def serial_of(contents: Contents) -> uuid.UUID:
    """The document's number: made of the image's digest, the lock's and envbuilder's version."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"envbuilder {__version__} {contents.digest} {contents.lock}")


def _bom(contents: Contents) -> Bom:
    from cyclonedx.model.bom import Bom, BomMetaData
    from cyclonedx.model.component import Component as Described
    from cyclonedx.model.component import ComponentType
    from cyclonedx.model.tool import ToolRepository

    image = Described(
        name=contents.name,
        version=contents.digest,
        type=ComponentType.CONTAINER,
        bom_ref=contents.digest,
        properties=_properties({"stack": contents.stack, "gpu": contents.gpu, "lock": contents.lock}),
    )
    tool = Described(name="envbuilder", version=__version__, type=ComponentType.APPLICATION, bom_ref="envbuilder")
    system = contents.system
    parts = [_described(component) for component in contents.components]
    if system.id:
        parts.append(
            Described(
                name=system.id,
                version=system.version,
                description=system.title or None,
                type=ComponentType.OPERATING_SYSTEM,
                bom_ref=f"os:{system.id}-{system.version}",
            )
        )
    bom = Bom(
        serial_number=serial_of(contents),
        components=parts,
        metadata=BomMetaData(
            # Without a stack nothing says when; the standard lets the time be left out, the library does not.
            timestamp=datetime.fromtimestamp(contents.time, tz=timezone.utc),
            component=image,
            tools=ToolRepository(components=[tool]),
        ),
    )
    bom.register_dependency(image, parts)
    return bom


def _described(component: Component) -> Described:
    from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
    from cyclonedx.model.component import Component as Described
    from cyclonedx.model.component import ComponentType, Patch, PatchClassification, Pedigree
    from cyclonedx.model.contact import OrganizationalEntity
    from packageurl import PackageURL

    pedigree = None
    if component.patched:
        files = ", ".join(component.patched)
        pedigree = Pedigree(
            patches=[Patch(type=PatchClassification.UNOFFICIAL)],
            notes=f"Changed for the stack's card by envbuilder patch, {len(component.patched)} files: {files}",
        )
    source, version = component.source
    facts = {"source": source, "source-version": version, "files": str(component.files), **component.properties}
    repository = facts.pop("repository", "")
    references = [ExternalReference(type=ExternalReferenceType.VCS, url=XsUri(repository))] if repository else []
    return Described(
        name=component.name,
        version=component.version,
        type=ComponentType.CONTAINER if component.kind is Kind.IMAGE else ComponentType.LIBRARY,
        bom_ref=component.purl,
        purl=PackageURL.from_string(component.purl),
        supplier=OrganizationalEntity(name=component.supplier) if component.supplier else None,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=component.sha256)] if component.sha256 else [],
        licenses=list(_licences(component)),
        external_references=references,
        properties=_properties(facts),
        pedigree=pedigree,
    )


def _properties(facts: dict[str, str]) -> list[Property]:
    from cyclonedx.model import Property

    return [Property(name=f"{_PREFIX}{name}", value=value) for name, value in facts.items() if value]


def _licences(component: Component) -> Iterator[License]:
    """One expression where it is the only one; the format has no room for an expression beside others."""
    from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
    from cyclonedx.spdx import fixup_id

    licences = component.licences or (NOT_KNOWN,)
    for licence in licences:
        identifier = fixup_id(licence)
        if identifier:
            yield DisjunctiveLicense(id=identifier)
        elif len(licences) == 1 and spdx_expression(licence):
            yield LicenseExpression(licence)
        else:
            yield DisjunctiveLicense(name=licence)
