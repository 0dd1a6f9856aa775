"""A line to a registry that breaks, processes that are killed, two at once: nothing lost, nothing half-installed.

The registry, the namespaces, TLS and buildah are real; the image is a stand-in of some megabytes.
"""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Net
from tests.e2e.cutting_line import CuttingLine
from tests.e2e.hosts import RESULTS, Host, kill, refused, wait_for, wrapped_buildah
from tests.e2e.published import DONE, MIB, Tiny, comes_whole, publish_tiny

pytestmark = pytest.mark.e2e


def test_a_line_that_breaks_is_taken_up_again_where_it_broke(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.cut_after, line.cuts = 3 * MIB, 5
    comes_whole(second, tiny.at(line.host))
    assert line.cuts == 0, "it did break"
    # Nothing comes twice; TLS and HTTP add a little.
    assert line.passed < tiny.size * 1.1, (line.passed, tiny.size)


@pytest.mark.parametrize("reset", [True, False])
def test_a_line_that_keeps_breaking_is_told_and_the_next_run_goes_on(
    second: Host, line: CuttingLine, tiny: Tiny, reset: bool
) -> None:
    line.reset = reset
    line.cut_after, line.cuts = 3 * MIB, 4
    wait_until_stuck = second.start("pull", tiny.at(line.host))
    wait_for(lambda: line.cuts == 0, wait_until_stuck)
    # From now on nothing gets through, and nothing more is said about it than once.
    line.cut_after, line.cuts = 0, 10**6
    _, errors = wait_until_stuck.communicate(timeout=300)
    assert "certificate" not in errors, "a line that breaks amid TLS says nothing of certificates"
    refused(subprocess.CompletedProcess([], wait_until_stuck.returncode, "", errors), 4, line.host, "keeps breaking")
    assert second.left() == RESULTS
    kept = second.kept()
    assert kept > 3 * MIB
    line.cuts, before = 0, line.passed
    comes_whole(second, tiny.at(line.host))
    assert line.passed - before < (tiny.size - kept) * 1.1 + MIB


def test_a_broken_push_goes_on_where_it_broke(
    net: Net, line: CuttingLine, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads go the other way: what is cut is the registry's answers to them."""
    from envbuilder.publish import uploads

    monkeypatch.setattr(uploads, "CHUNK", 2 * MIB)
    line.cut_requests_after, line.cuts = MIB, 4
    with net.on_first(tmp_path):
        again = publish_tiny(f"{line.host}", repository="broken/tiny")
    assert again.digest == tiny.digest
    assert line.cuts == 0
    assert MIB < line.sent < tiny.size + 4 * 2 * MIB + MIB


def test_killed_amid_the_transfer_the_next_pull_goes_on(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 4 * MIB
    running = second.start("pull", tiny.at(line.host))
    wait_for(lambda: second.fetched() > 3 * MIB, running)
    kill(running)
    assert second.images() == []
    kept = second.kept()
    line.rate, before = None, line.passed
    comes_whole(second, tiny.at(line.host))
    assert line.passed - before < (tiny.size - kept) * 1.1 + MIB


def test_killed_amid_the_import_the_next_pull_finishes_it(second: Host, tmp_path: Path, tiny: Tiny, net: Net) -> None:
    """The importer is killed as soon as it has begun to write layers, and envbuilder with it: the power went."""
    path = second.environment["PATH"]
    begun = f"ls {second.storage}/graph/overlay/*/diff >/dev/null 2>&1"
    second.environment["PATH"] = wrapped_buildah(
        tmp_path / "bin", f'$real "$@" & pid=$!\nuntil {begun}; do sleep 0.02; done\nkill -9 $pid $PPID; exit 1'
    )
    running = second.start("pull", tiny.at(net.registry.host))
    running.communicate(timeout=120)
    assert running.returncode == -signal.SIGKILL
    second.environment["PATH"] = path
    assert second.images() == []
    assert list(second.cache.glob("scratch/*")), "it was amid the work"
    comes_whole(second, tiny.at(net.registry.host))


def test_an_importer_that_dies_is_told_and_nothing_is_left(second: Host, tmp_path: Path, tiny: Tiny, net: Net) -> None:
    path = second.environment["PATH"]
    begun = f"ls {second.storage}/graph/overlay/*/diff >/dev/null 2>&1"
    second.environment["PATH"] = wrapped_buildah(
        tmp_path / "bin", f'$real "$@" & pid=$!\nuntil {begun}; do sleep 0.02; done\nkill -9 $pid; wait $pid; exit $?'
    )
    refused(second.envbuilder("pull", tiny.at(net.registry.host)), 6, "buildah was killed")
    assert second.left() == RESULTS
    second.environment["PATH"] = path
    comes_whole(second, tiny.at(net.registry.host))


def test_interrupted_amid_the_transfer_it_says_so(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 4 * MIB
    running = second.start("pull", tiny.at(line.host))
    wait_for(lambda: second.fetched() > MIB, running)
    os.killpg(running.pid, signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert second.left() == RESULTS
    line.rate = None
    comes_whole(second, tiny.at(line.host))


def test_two_that_pull_the_same_image_fetch_it_once(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 8 * MIB
    both = [second.start("pull", tiny.at(line.host), "--json") for _ in range(2)]
    said = []
    for running in both:
        out, errors = running.communicate(timeout=240)
        assert running.returncode == 0, errors
        said.append(json.loads(out))
    assert sorted(one["pulled"] for one in said) == [False, True]
    assert line.passed < tiny.size * 1.1
    assert second.left() == DONE


def test_when_the_first_of_two_is_killed_the_second_finishes(second: Host, line: CuttingLine, tiny: Tiny) -> None:
    line.rate = 4 * MIB
    first = second.start("pull", tiny.at(line.host))
    wait_for(lambda: second.fetched() > 2 * MIB, first)
    other = second.start("pull", tiny.at(line.host), "--json")
    kill(first)
    line.rate = None
    out, errors = other.communicate(timeout=240)
    assert other.returncode == 0, errors
    assert json.loads(out)["pulled"] is True
    assert second.left() == DONE
    assert line.passed < tiny.size * 1.2 + MIB
