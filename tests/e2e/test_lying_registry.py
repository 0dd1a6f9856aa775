"""A registry that serves other bytes than those of the digest: found out, and nothing of it kept."""

from collections.abc import Iterator

import pytest

from tests.e2e import lying_registry as lying
from tests.e2e.conftest import PORT, Net
from tests.e2e.hosts import FIRST, RESULTS, Host, refused
from tests.e2e.published import Tiny, comes_whole

pytestmark = pytest.mark.e2e


@pytest.fixture
def liar(net: Net) -> Iterator[lying.LyingRegistry]:
    certificate = net.authority.issue("liar", FIRST)
    made = lying.LyingRegistry(net.first, PORT + 2, PORT, certificate, net.authority.path)
    yield made
    made.close()


LIES: dict[str, tuple[lying.Lie, str]] = {
    "other bytes": (lying.other_bytes, "is not the file of the image's manifest"),
    "too long": (lying.too_long, "bytes there"),
    "too short": (lying.too_short, "bytes there"),
    "endless": (lying.endless, "is longer there than"),
    "a web page": (lying.web_page, "is a web page there"),
}


@pytest.mark.parametrize("which", ["layer", "configuration"])
@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_a_blob_is_found_out(
    second: Host, liar: lying.LyingRegistry, tiny: Tiny, lie: str, which: str
) -> None:
    tell, says = LIES[lie]
    liar.lies[tiny.layers[0] if which == "layer" else tiny.config] = tell
    done = second.envbuilder("pull", tiny.at(liar.host))
    refused(done, 5, liar.host, says)
    assert "lock" not in done.stderr, "no lock has anything to do with it"
    assert second.left() == RESULTS
    liar.lies.clear()
    comes_whole(second, tiny.at(liar.host))


@pytest.mark.parametrize(
    ("tell", "code", "says"),
    [
        (lying.other_bytes, 5, "serves other bytes"),
        (lying.web_page, 5, ""),
        (lying.endless, 5, ""),
    ],
)
def test_a_lie_about_the_manifest_is_found_out(
    second: Host, liar: lying.LyingRegistry, tiny: Tiny, tell: lying.Lie, code: int, says: str
) -> None:
    liar.lies[tiny.digest] = tell
    refused(second.envbuilder("pull", tiny.at(liar.host)), code, liar.host, says)
    assert second.left() == RESULTS
    liar.lies.clear()
    comes_whole(second, tiny.at(liar.host))


def test_a_registry_that_always_ends_too_early_is_told(second: Host, liar: lying.LyingRegistry, tiny: Tiny) -> None:
    liar.lies[tiny.layers[0]] = lying.nothing_more
    refused(second.envbuilder("pull", tiny.at(liar.host)), 4, liar.host, "keeps breaking")
    assert second.left() == RESULTS


def test_of_two_mirrors_the_one_that_lies_is_not_taken_at_its_word(
    second: Host, liar: lying.LyingRegistry, tiny: Tiny, net: Net
) -> None:
    """A mirror with other bytes stops the pull: whoever set it must know."""
    (second.project / "envbuilder.toml").write_text(f'[mirrors.replace]\n"{net.registry.host}" = ["{liar.host}"]\n')
    liar.lies[tiny.layers[1]] = lying.other_bytes
    refused(second.envbuilder("pull", tiny.at(net.registry.host)), 5, liar.host, LIES["other bytes"][1])
    assert second.left() == RESULTS
