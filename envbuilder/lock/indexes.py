"""Package indexes beside the default one (the PyTorch index), and the files that stacks take from them.

What is recorded in ``indexes.toml`` is locked by that record, whether or not the index is reached. What is not is
asked of the index: its page (PEP 503) and the file's metadata (PEP 658).
"""

from __future__ import annotations

import html.parser
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urljoin, urlsplit

from packaging.metadata import Metadata
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from pydantic import Field

from envbuilder.errors import InputError, IntegrityError, Place, SourceError
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import Filename, Sha256
from envbuilder.stack.fields import Strict, load_model

_DATA = Path(__file__).with_name("indexes.toml")
_TIMEOUT = (5, 60)


class Index(Strict):
    """A package index by name."""

    name: str
    url: Annotated[str, Field(pattern=r"^https?://\S+[^/]$")]
    source: str


class IndexFile(Strict):
    """One wheel of an index: digest and requirements. ``python`` is its Python tag."""

    index: str
    name: str
    version: str
    python: str
    filename: Filename
    sha256: Sha256
    requires: tuple[str, ...]
    requires_python: str
    status: str
    source: str
    requires_source: str


class IndexData(Strict):
    """The content of ``indexes.toml``."""

    index: tuple[Index, ...]
    file: tuple[IndexFile, ...]


def index_data() -> IndexData:
    """The indexes and the files recorded of them."""
    return load_model(IndexData, _DATA)


def index_named(name: str, place: Place) -> Index:
    """The index ``name``. Raises InputError at ``place`` when there is no such index."""
    known = index_data().index
    found = next((index for index in known if index.name == name), None)
    if found is None:
        raise InputError(
            f"there is no index named {name!r}", place=place, cure=f"Known: {', '.join(i.name for i in known)}."
        )
    return found


@dataclass(frozen=True)
class Wanted:
    """A file that is wanted: package and version, and the wheel tags that fit, best first."""

    name: str
    version: str
    tags: Sequence[Tag]


def find_file(index: Index, wanted: Wanted, mirrors: Mirrors, offline: bool = False) -> IndexFile:
    """The file of ``index`` that fits: as the index says, or as recorded where it does not answer.

    Raises SourceError when it is neither recorded nor reached, and IntegrityError when record and index disagree.
    """
    recorded = recorded_file(index, wanted)
    if offline:
        if recorded is None:
            raise SourceError(
                f"{wanted.name} {wanted.version} of the index {index.name} is not recorded",
                cure="Lock it without --offline.",
            )
        return recorded
    try:
        asked = asked_file(index, wanted, mirrors)
    except SourceError:
        if recorded is None:
            raise
        return recorded
    if recorded is not None and asked.sha256 != recorded.sha256:
        raise IntegrityError(
            f"the index {index.name} at {asked.source} serves other bytes of {recorded.filename} than those recorded",
            cure="One of the two is wrong: take the file from another mirror, and do not lock until they agree.",
            detail=f"recorded  {recorded.sha256}  ({recorded.source})\nindex     {asked.sha256}  ({asked.source})",
        )
    return recorded or asked


def recorded_file(index: Index, wanted: Wanted) -> IndexFile | None:
    """The recorded file that fits, or None."""
    fitting = [
        f for f in index_data().file if (f.index, f.name, f.version) == (index.name, wanted.name, wanted.version)
    ]
    best = _best([f.filename for f in fitting], wanted)
    return next((f for f in fitting if f.filename == best), None)


def asked_file(index: Index, wanted: Wanted, mirrors: Mirrors) -> IndexFile:
    """The file that fits, as the first of the index's ``mirrors`` and itself that answers tells.

    Raises SourceError when none answers or has it, and IntegrityError when a page is no index page.
    """
    said: list[str] = []
    for address in mirrors.addresses(index.url):
        page_url = f"{address.rstrip('/')}/{canonicalize_name(wanted.name)}/"
        try:
            links = parse_page(_get(page_url), page_url)
        except SourceError as error:
            said.append(f"{page_url}: {error.message}")
            continue
        best = _best(list(links), wanted)
        if best is None:
            said.append(f"{page_url}: has no file of {wanted.name} {wanted.version} that fits")
            continue
        url, sha256 = links[best]
        if sha256 is None:
            said.append(f"{page_url}: gives no SHA-256 for {best}")
            continue
        metadata = Metadata.from_email(_get(f"{url}.metadata").encode(), validate=False)
        return IndexFile(
            index=index.name,
            name=wanted.name,
            version=wanted.version,
            python=best.split("-")[2],
            filename=best,
            sha256=sha256,
            requires=tuple(str(requirement) for requirement in metadata.requires_dist or []),
            requires_python=str(metadata.requires_python or ""),
            status="asked",
            source=address,
            requires_source=address,
        )
    raise SourceError(
        f"{wanted.name} {wanted.version} cannot be looked up in the index {index.name}",
        cure="Lock on a host that reaches the index, or name a mirror of it in envbuilder.toml (docs/mirrors.md).",
        detail="\n".join(said),
    )


def _get(url: str) -> str:
    import requests

    try:
        answer = requests.get(url, timeout=_TIMEOUT)
        answer.raise_for_status()
    except requests.RequestException as error:
        raise SourceError(_short(error)) from None
    return answer.text


def _short(error: Exception) -> str:
    response = getattr(error, "response", None)
    return f"HTTP {response.status_code}" if response is not None else f"does not answer ({type(error).__name__})"


class _Links(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.hrefs: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.hrefs += [value for key, value in attrs if key == "href" and value]


def parse_page(text: str, url: str) -> Mapping[str, tuple[str, str | None]]:
    """File name to address and SHA-256 (None where not given) of a PEP 503 page at ``url``.

    Raises IntegrityError when the page links no wheel at all: a login or error page served as if it were an index.
    """
    parser = _Links()
    parser.feed(text)
    found: dict[str, tuple[str, str | None]] = {}
    for href in parser.hrefs:
        address = urljoin(url, href)
        parts = urlsplit(address)
        filename = unquote(parts.path.rsplit("/", 1)[-1])
        if filename.endswith(".whl"):
            digest = re.search(r"sha256=([0-9a-f]{64})", parts.fragment)
            found[filename] = (address.partition("#")[0], digest[1] if digest else None)
    if not found:
        raise IntegrityError(
            f"{url} is not a page of a package index: it names no wheel",
            cure="A proxy or a login page may be answering in its place; open the address in a browser.",
        )
    return found


def _best(filenames: Sequence[str], wanted: Wanted) -> str | None:
    """The file whose tags stand first among those that fit."""
    rank = {tag: place for place, tag in enumerate(wanted.tags)}
    fitting: list[tuple[int, str]] = []
    for filename in filenames:
        try:
            name, version, _, tags = parse_wheel_filename(filename)
        except InvalidWheelFilename:
            continue
        places = [rank[tag] for tag in tags if tag in rank]
        if name == canonicalize_name(wanted.name) and version == Version(wanted.version) and places:
            fitting.append((min(places), filename))
    return min(fitting)[1] if fitting else None
