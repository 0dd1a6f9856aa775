"""Asking sources: who answers, who does not, who answers with something else; never past the deadline."""

import json
import threading
import time
from collections.abc import Callable

import pytest
from click.testing import CliRunner
from pytest_httpserver import HTTPServer
from werkzeug import Response

from envbuilder.cli.sources import command
from envbuilder.errors import EnvbuilderError
from envbuilder.fetch import sources as module
from envbuilder.fetch.sources import Answer, Source, ask_sources, first_reachable, sources_of
from envbuilder.stack.loading import load_stack
from envbuilder.stack.settings import DebianSettings, Settings


def failing(message: str) -> Callable[[], str]:
    def ask() -> str:
        raise EnvbuilderError(message)

    return ask


def test_answers_come_in_order_and_say_what_is_wrong() -> None:
    answers = ask_sources([Source("a", "x", lambda: "fine"), Source("b", "y", failing("broken"))])
    assert [(a.source, a.through, a.answers, a.said) for a in answers] == [
        ("a", "x", True, "fine"),
        ("b", "y", False, "broken"),
    ]


def test_a_source_that_never_answers_does_not_hold_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.3)
    release = threading.Event()
    started = time.monotonic()
    answers = ask_sources([Source("slow", "x", lambda: str(release.wait(20))), Source("a", "x", lambda: "fine")])
    assert time.monotonic() - started < 5
    release.set()
    assert [a.answers for a in answers] == [False, True]
    assert answers[0].said.startswith("no answer within")


@pytest.mark.parametrize(
    ("body", "answers", "said"),
    [
        ("Origin: Debian\nVersion: 12.15\n", True, "serves 12.15"),
        ("Origin: Debian\nVersion: 12.9\n", False, "serves 12.9, the stack is made of 12.15"),
        ("hello", False, "what is served there is not the index of a Debian suite"),
        (None, False, "answers 404 NOT FOUND"),
    ],
)
def test_a_debian_mirror_is_asked_for_its_release(
    httpserver: HTTPServer, body: str | None, answers: bool, said: str
) -> None:
    answer = Response(status=404) if body is None else Response(body, content_type="text/plain")
    httpserver.expect_request("/debian/dists/bookworm/InRelease").respond_with_response(answer)
    settings = Settings(debian=DebianSettings(mirror=httpserver.url_for("/debian")))
    stack, _ = load_stack("p40-debian")
    (found,) = ask_sources([s for s in sources_of(stack, settings) if s.name.startswith("Debian")])
    assert (found.answers, found.said) == (answers, said)
    assert found.through == httpserver.url_for("/debian")


def test_a_web_page_is_no_answer(httpserver: HTTPServer) -> None:
    httpserver.expect_request("/debian/dists/bookworm/InRelease").respond_with_data("<p>", content_type="text/html")
    settings = Settings(debian=DebianSettings(mirror=httpserver.url_for("/debian")))
    stack, _ = load_stack("p40-debian")
    (found,) = ask_sources([s for s in sources_of(stack, settings) if s.name.startswith("Debian")])
    assert not found.answers
    assert "web page" in found.said


def test_p40_needs_channels_a_git_host_and_a_registry() -> None:
    names = [source.name for source in sources_of(load_stack("p40")[0], Settings())]
    expected = {"Python index", "Python index pytorch-cu118", "conda channel conda-forge", "git repository of apex"}
    assert {*expected, "image registry docker.io"} <= set(names)


def test_the_first_stack_whose_sources_all_answer_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def of(stack: object, _: object) -> list[Source]:
        good = getattr(stack, "name", "") == "p40-debian"
        return [Source("index", "x", lambda: "fine"), Source("host", "x", (lambda: "ok") if good else failing("gone"))]

    monkeypatch.setattr(module, "sources_of", of)
    name, reason = first_reachable(["p40", "p40-debian"])
    assert name == "p40-debian"
    assert reason == "p40: host: gone. p40-debian: all 2 sources answer."
    assert first_reachable(["p40"]) == (None, "p40: host: gone.")


@pytest.mark.parametrize(("answers", "code"), [(True, 0), (False, 4)])
def test_the_command_prints_a_table_and_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, answers: bool, code: int
) -> None:
    monkeypatch.setattr(module, "ask_sources", lambda _: [Answer("index", "here", answers, 12, "said")])
    run = CliRunner().invoke(command, ["p40-debian"], standalone_mode=False)
    assert run.return_value == code
    assert "index" in run.output
    run = CliRunner().invoke(command, ["p40-debian", "--json"], standalone_mode=False)
    assert run.return_value == code
    assert json.loads(run.output)[0]["milliseconds"] == 12
