"""The Debian half against a signed archive of a dozen stand-in packages, resolved by the real apt."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from envbuilder.errors import HostError, InputError, SourceError
from envbuilder.lock import apt, archives
from envbuilder.lock.archives import mirror_of
from envbuilder.lock.debian import lock_debian
from envbuilder.lock.model import DebianBase
from envbuilder.stack.loading import load_stack
from envbuilder.stack.model import Stack
from envbuilder.stack.settings import DebianSettings, Settings
from tests.debian_mirror import DebianMirror


@pytest.fixture
def settings(debian_mirror: DebianMirror) -> Settings:
    return Settings(
        debian=DebianSettings(mirror=debian_mirror.url() + "/", security_mirror=debian_mirror.url("security"))
    )


@pytest.fixture
def stack() -> Stack:
    stack, _ = load_stack("p40-debian")
    assert stack.debian is not None
    part = stack.debian.model_copy(update={"devel": ("nvidia-cuda-toolkit", "make")})
    return stack.model_copy(update={"debian": part})


def names(base: DebianBase, target: str) -> list[str]:
    return sorted(p.name for p in base.packages if p.target == target)


def with_debian(stack: Stack, **update: object) -> Stack:
    assert stack.debian is not None
    return stack.model_copy(update={"debian": stack.debian.model_copy(update=update)})


def test_the_base_is_minbase_and_what_the_stack_names(stack: Stack, settings: Settings) -> None:
    base = lock_debian(stack, settings)
    assert names(base, "runtime") == [
        "adduser", "apt", "base-files", "ca-certificates", "dpkg", "libc6", "login", "openssl", "python3", "python3.11",
    ]  # fmt: skip
    assert names(base, "devel") == ["libcudart11.0", "make", "nvidia-cuda-toolkit"]
    assert (base.suite, base.release, base.security) == ("bookworm", "12.15", False)
    found = {p.name: p for p in base.packages}
    assert found["login"].version == "1:4.13+dfsg1-1+deb12u2"
    assert found["login"].path == "pool/main/l/login/login_4.13+dfsg1-1+deb12u2_amd64.deb"
    assert found["login"].filename == "login_1%3a4.13+dfsg1-1+deb12u2_amd64.deb"
    assert found["adduser"].architecture == "all"
    assert found["libcudart11.0"].component == "non-free"
    assert found["openssl"].size == len("openssl_3.0.20-1~deb12u2_amd64.deb")
    assert len(found["openssl"].sha256) == 64


def test_the_same_again_and_without_the_network(stack: Stack, settings: Settings, debian_mirror: DebianMirror) -> None:
    base = lock_debian(stack, settings)
    assert lock_debian(stack, settings) == base
    shutil.rmtree(debian_mirror.folder)
    assert lock_debian(stack, settings, offline=True) == base


def test_offline_without_an_earlier_run_says_so(stack: Stack, settings: Settings) -> None:
    with pytest.raises(InputError, match="no index of bookworm is known here"):
        lock_debian(stack, settings, offline=True)


def test_security_updates_are_asked_for(stack: Stack, settings: Settings) -> None:
    base = lock_debian(stack, settings, security=True)
    openssl = next(p for p in base.packages if p.name == "openssl")
    assert (openssl.version, openssl.suite) == ("3.0.20-1~deb12u3", "bookworm-security")
    assert (openssl.path, openssl.component) == (
        "pool/updates/main/o/openssl/openssl_3.0.20-1~deb12u3_amd64.deb",
        "main",
    )
    assert {p.suite for p in base.packages if p.name != "openssl"} == {"bookworm"}
    assert base.security


def test_another_point_release_is_not_what_the_stack_is_made_of(
    stack: Stack, settings: Settings, debian_mirror: DebianMirror
) -> None:
    moved = Settings(debian=DebianSettings(mirror=debian_mirror.url("later")))
    with pytest.raises(InputError, match=r"serves bookworm 12\.16, the stack is made of 12\.15") as caught:
        lock_debian(stack, moved)
    assert caught.value.cure is not None
    assert 'point_release = "12.16"' in caught.value.cure
    base = lock_debian(with_debian(stack, point_release="12.16"), moved)
    assert next(p.version for p in base.packages if p.name == "python3") == "3.11.2-1+b2"


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("InRelease", lambda data: data.replace(b"12.15", b"12.14")),
        ("InRelease", lambda data: data[: data.index(b"-----BEGIN PGP SIGNATURE")]),
        ("InRelease", lambda _: b"<html>Log in</html>"),
        ("main/binary-amd64/Packages", lambda data: data.replace(b"3.134", b"3.135")),
    ],
    ids=["changed", "unsigned", "page", "packages"],
)
def test_an_index_that_was_tampered_with_is_refused(
    stack: Stack, settings: Settings, debian_mirror: DebianMirror, file: str, change: Callable[[bytes], bytes]
) -> None:
    path = debian_mirror.folder / "now" / "dists" / "bookworm" / file
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(SourceError) as caught:
        lock_debian(stack, settings)
    assert caught.value.detail


def test_a_stale_index_does_not_stand_in_for_a_mirror_that_is_gone(
    stack: Stack, settings: Settings, debian_mirror: DebianMirror
) -> None:
    lock_debian(stack, settings)
    shutil.rmtree(debian_mirror.folder)
    with pytest.raises(SourceError, match="does not answer"):
        lock_debian(stack, settings)


def test_a_package_that_is_not_there_is_named(stack: Stack, settings: Settings) -> None:
    with pytest.raises(InputError) as caught:
        lock_debian(with_debian(stack, packages=("python3", "python4")), settings)
    assert "python4" in (caught.value.detail or "")


def test_the_runtime_takes_nothing_of_the_devel_components(stack: Stack, settings: Settings) -> None:
    with pytest.raises(InputError) as caught:
        lock_debian(with_debian(stack, packages=("nvidia-cuda-toolkit",)), settings)
    assert "nvidia-cuda-toolkit" in (caught.value.detail or "")


def test_without_the_keyring_nothing_is_trusted(
    stack: Stack, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apt, "KEYRING", tmp_path / "no.gpg")
    with pytest.raises(HostError, match="keyring") as caught:
        lock_debian(stack, settings)
    assert caught.value.cure == "Install it: apt-get install debian-archive-keyring"


def test_without_apt_the_host_is_said_to_lack_it(
    stack: Stack, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(HostError, match="apt-config is not there"):
        lock_debian(stack, settings)


ROWS = """\
bookworm-updates|bookworm-updates|Debian|Debian|http://mirror.test/debian/
trixie|trixie|Debian|Debian|http://mirror.test/debian/
trixie-security|trixie-security|Debian|Debian-Security|http://mirror.test/security/
bookworm-backports|bookworm-backports|Debian Backports|Debian Backports|http://other.test/debian/
"""


@pytest.mark.parametrize(
    ("rows", "suite", "mirror"),
    [
        (ROWS, "bookworm", "http://mirror.test/debian"),
        (ROWS, "bookworm-security", "http://mirror.test/security"),
        (ROWS + "bookworm|bookworm|Debian|Debian|http://right.test/d/\n", "bookworm", "http://right.test/d"),
        ("oldstable|bookworm|Debian|Debian|http://right.test/d/\n", "bookworm", "http://right.test/d"),
    ],
)
def test_the_mirror_is_the_one_apt_reads(monkeypatch: pytest.MonkeyPatch, rows: str, suite: str, mirror: str) -> None:
    monkeypatch.setattr(archives, "_indextargets", lambda: rows)
    assert mirror_of(suite, Settings()) == mirror


def test_a_host_that_reads_no_debian_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_indextargets", lambda: "noble|noble|Ubuntu|Ubuntu|http://mirror.test/ubuntu/\n")
    with pytest.raises(SourceError) as caught:
        mirror_of("bookworm", Settings())
    assert caught.value.cure == 'Name one in envbuilder.toml: [debian] mirror = "..."'
