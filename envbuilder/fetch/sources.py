"""Asking every source a stack needs whether it answers, all at once and within seconds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import requests

from envbuilder.errors import EnvbuilderError, Place
from envbuilder.fetch.transport import debian_session, python_session, quick
from envbuilder.lock.archives import mirror_of
from envbuilder.lock.client import PythonClient, distrusts, python_client, redact
from envbuilder.lock.indexes import index_named
from envbuilder.lock.mirrors import Mirrors, mirrors_of
from envbuilder.lock.python import target_of
from envbuilder.lock.registry import ImageName, registry_address
from envbuilder.lock.uv import resolve
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import Settings, load_settings

# Everything is asked at once; what has not answered by then does not count as there.
DEADLINE_SECONDS = 15.0
_TIMEOUT = (4.0, 6.0)
# A page is read as far as it takes to see what it is.
_HEAD_BYTES = 4096
_CONDA = "https://conda.anaconda.org"


@dataclass(frozen=True)
class Source:
    """A source: ``name`` for people, ``through`` the address or setting asked, ``ask`` what says whether it answers.

    ``ask`` returns what was found, in a few words, and raises EnvbuilderError when the source is of no use.
    """

    name: str
    through: str
    ask: Callable[[], str]


@dataclass(frozen=True)
class Answer:
    """How a source answered, after ``milliseconds``; ``said`` is what was found or what is wrong."""

    source: str
    through: str
    answers: bool
    milliseconds: int
    said: str


def ask_sources(sources: Sequence[Source]) -> list[Answer]:
    """Ask all ``sources`` at once; the answers in the same order, after at most DEADLINE_SECONDS."""
    answers: list[Answer | None] = [None] * len(sources)
    started = time.monotonic()

    def ask(place: int, source: Source) -> None:
        try:
            said, good = source.ask(), True
        except EnvbuilderError as error:
            said, good = error.message, False
        except requests.RequestException as error:
            said, good = _in_words(error), False
        elapsed = int((time.monotonic() - started) * 1000)
        answers[place] = Answer(source.name, source.through, good, elapsed, said)

    # Daemons: a source that never answers must not hold the command back.
    threads = [threading.Thread(target=ask, args=pair, daemon=True) for pair in enumerate(sources)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + DEADLINE_SECONDS - time.monotonic()))
    late = f"no answer within {DEADLINE_SECONDS:.0f} s"
    return [
        answer or Answer(source.name, source.through, False, int(DEADLINE_SECONDS * 1000), late)
        for source, answer in zip(sources, answers, strict=True)
    ]


def sources_of(stack: Stack, settings: Settings) -> list[Source]:
    """Every source ``stack`` needs on this host."""
    mirrors = mirrors_of(settings)
    return [
        _python(stack),
        *_debian(stack, settings),
        *_indexes(stack, mirrors),
        *_channels(stack, mirrors),
        *_git_hosts(stack, mirrors),
        *_registries(stack, mirrors),
    ]


def first_reachable(names: Sequence[str]) -> tuple[str | None, str]:
    """The first of the stacks ``names`` whose sources all answer (None when there is none), and why, in sentences."""
    settings = load_settings()
    stacks = [load_stack(name)[0] for name in names]
    sources = [sources_of(stack, settings) for stack in stacks]
    answers = iter(ask_sources([source for group in sources for source in group]))
    reasons: list[str] = []
    for stack, group in zip(stacks, sources, strict=True):
        silent = [a for a in [next(answers) for _ in group] if not a.answers]
        if not silent:
            return stack.name, " ".join([*reasons, f"{stack.name}: all {len(group)} sources answer."])
        reasons.append(f"{stack.name}: {'; '.join(f'{a.source}: {a.said}' for a in silent)}.")
    return None, " ".join(reasons)


def _python(stack: Stack) -> Source:
    client = python_client()

    def ask() -> str:
        # The smallest question that goes the whole way: one package through uv, then the host of its file.
        name, pin = next((n, p) for n, p in stack.python.packages.items() if p.index is None)
        pylock = resolve([f"{name}=={pin.version}"], target_of(stack), client, dependencies=False, refresh=True)
        wheels = pylock.packages[0].wheels or ()
        url = wheels[0].url if wheels else None
        if url is None or urlsplit(url).scheme == "file":
            return "answers"
        answer = quick(python_session(client)).head(url, timeout=_TIMEOUT, allow_redirects=True)
        _check_status(answer)
        return f"its files are at {urlsplit(url).hostname}"

    return Source("Python index", _shown(client), ask)


def _shown(client: PythonClient) -> str:
    return redact(client.index) if client.index else "uv's default"


def _debian(stack: Stack, settings: Settings) -> Iterator[Source]:
    part = stack.debian
    if part is None:
        return
    name = f"Debian {part.suite}"
    try:
        mirror = mirror_of(part.suite, settings)
    except EnvbuilderError as error:
        yield Source(name, "no mirror is set", _raising(error))
        return

    def ask() -> str:
        with quick(debian_session(mirror)).get(
            f"{mirror}/dists/{part.suite}/InRelease", stream=True, timeout=_TIMEOUT
        ) as answer:
            _check_status(answer)
            head = next(answer.iter_content(_HEAD_BYTES), b"").decode(errors="replace")
        version = re.search(r"^Version: (\S+)$", head, re.MULTILINE)
        if version is None:
            raise EnvbuilderError("what is served there is not the index of a Debian suite")
        if version[1] != part.point_release:
            raise EnvbuilderError(f"serves {version[1]}, the stack is made of {part.point_release}")
        return f"serves {version[1]}"

    yield Source(name, redact(mirror), ask)


def _indexes(stack: Stack, mirrors: Mirrors) -> Iterator[Source]:
    named = {pin.index: name for name, pin in stack.python.packages.items() if pin.index}
    for index, package in named.items():
        address = index_named(index, Place(field=f"python.packages.{package}.index")).url
        yield _at_one_of(f"Python index {index}", mirrors.addresses(address), f"/{package}/", page=True)


def _channels(stack: Stack, mirrors: Mirrors) -> Iterator[Source]:
    for channel in stack.conda.channels if stack.conda else ():
        addresses = mirrors.addresses(f"{_CONDA}/{channel}")
        yield _at_one_of(f"conda channel {channel}", addresses, "/linux-64/repodata.json")


def _git_hosts(stack: Stack, mirrors: Mirrors) -> Iterator[Source]:
    for name, part in stack.sources.items():
        addresses = mirrors.addresses(part.repository)
        yield _at_one_of(f"git repository of {name}", addresses, "/info/refs?service=git-upload-pack")


def _registries(stack: Stack, mirrors: Mirrors) -> Iterator[Source]:
    if stack.image is None:
        return
    hosts = {ImageName.parse(reference).host for reference in (stack.image.devel, stack.image.runtime)}
    for host in sorted(hosts):
        addresses = [registry_address(address) for address in mirrors.addresses(host)]
        # A registry that asks for a login answers 401, and that is an answer: images are pulled with a token.
        yield _at_one_of(f"image registry {host}", addresses, "/v2/", 401)


def _at_one_of(name: str, addresses: Sequence[str], path: str, *good: int, page: bool = False) -> Source:
    """A source that answers when one of ``addresses`` does: its mirrors and itself. ``page``: a web page is right."""

    def ask() -> str:
        said = []
        for address in addresses:
            try:
                _ask(address, path, good, page)
            except (EnvbuilderError, requests.RequestException) as error:
                said.append(error.message if isinstance(error, EnvbuilderError) else _in_words(error))
            else:
                return "answers" if len(addresses) == 1 else f"{address} answers"
        if len(set(said)) == 1:
            raise EnvbuilderError(said[0] if len(said) == 1 else f"none of its {len(said)} addresses: {said[0]}")
        told = "; ".join(f"{a}: {s}" for a, s in zip(addresses, said, strict=True))
        raise EnvbuilderError(told)

    return Source(name, addresses[0], ask)


def _ask(address: str, path: str, good: Sequence[int], page: bool) -> None:
    if address.startswith("file://"):
        if not (Path(unquote(urlsplit(address).path)) / path.strip("/").partition("?")[0]).exists():
            raise EnvbuilderError("is not there")
        return
    with quick().get(f"{address}{path}", stream=True, timeout=_TIMEOUT) as answer:
        if page and answer.status_code == 200:
            return
        _check_status(answer, *good)


def _raising(error: EnvbuilderError) -> Callable[[], str]:
    def ask() -> str:
        raise error

    return ask


def _check_status(answer: requests.Response, *good: int) -> None:
    if answer.status_code not in (200, *good):
        raise EnvbuilderError(f"answers {answer.status_code} {answer.reason}")
    if answer.headers.get("Content-Type", "").startswith("text/html"):
        raise EnvbuilderError("answers with a web page, a login page most often")


def _in_words(error: requests.RequestException) -> str:
    if distrusts(error):
        return "its certificate is not trusted here"
    if isinstance(error, requests.exceptions.ProxyError):
        return "the proxy does not let it through"
    if isinstance(error, requests.Timeout):
        return "no answer in time"
    return "cannot be reached"
