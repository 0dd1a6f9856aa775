"""A Docker daemon of the tests' own: Debian 13's packages unpacked into a folder, beside whatever the host has.

Debian 12's own Docker is 20.10, whose builder cannot make the same image twice. The daemon leaves the host's network
alone (no bridge, no packet filter), so containers with a network are not tested with it.
"""

import contextlib
import json
import os
import subprocess
import time

import pytest

from envbuilder.lock.archives import mirror_of
from envbuilder.stack.settings import load_settings

PACKAGES = ("docker.io", "docker-cli", "docker-buildx", "containerd")
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def unpack(folder, packages=PACKAGES):
    """Download packages with apt, whose signatures it checks, and unpack them; the root they lie under."""
    for name in ("lists/partial", "cache/archives/partial", "debs", "root"):
        (folder / name).mkdir(parents=True)
    sources = folder / "sources.list"
    sources.write_text(f"deb [signed-by={KEYS}] {mirror_of('bookworm', load_settings())} trixie main\n")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder / "cache",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(part for key, value in options.items() for part in ("-o", f"{key}={value}"))]
    subprocess.run([*apt, "update"], check=True, capture_output=True)
    subprocess.run([*apt, "download", *packages], cwd=folder / "debs", check=True, capture_output=True)
    for deb in (folder / "debs").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", str(deb), str(folder / "root")], check=True)
    return folder / "root"


@contextlib.contextmanager
def docker_daemon(folder, mirror=None, instead=(), more=()):
    """Run the daemon; DOCKER_HOST, PATH and DOCKER_CONFIG lead to it meanwhile.

    ``mirror`` (host:port, plain HTTP) is asked in the place of Docker's hub. ``instead`` are pairs: a file of the host,
    and what the daemon sees in its place. It has a mount namespace of its own. ``more`` are further packages.
    """
    root = unpack(folder, [*PACKAGES, *more])
    programs = f"{root / 'usr/sbin'}:{root / 'usr/bin'}:{os.environ['PATH']}"
    plugins = folder / "client" / "cli-plugins"
    plugins.parent.mkdir()
    plugins.symlink_to(root / "usr/libexec/docker/cli-plugins")
    # buildah reads the folder too, and stops where it holds no configuration.
    (folder / "client" / "config.json").write_text("{}")
    socket = folder / "docker.sock"
    settings = {
        "features": {"containerd-snapshotter": True},
        "bridge": "none",
        "iptables": False,
        "ip-forward": False,
        "data-root": str(folder / "data"),
        "exec-root": str(folder / "exec"),
        "pidfile": str(folder / "pid"),
        "hosts": [f"unix://{socket}"],
        "registry-mirrors": [f"http://{mirror}"] if mirror else [],
    }
    (folder / "daemon.json").write_text(json.dumps(settings))
    log = (folder / "log").open("w")
    mounts = "".join(f"mount --bind {ours} {theirs} && " for theirs, ours in instead)
    daemon = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", f"{mounts} exec dockerd --config-file {folder / 'daemon.json'}"],
        env={**os.environ, "PATH": programs},
        stdout=log,
        stderr=log,
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", programs)
            patch.setenv("DOCKER_HOST", f"unix://{socket}")
            patch.setenv("DOCKER_CONFIG", str(folder / "client"))
            for _ in range(120):
                if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
                    break
                assert daemon.poll() is None, (folder / "log").read_text()[-2000:]
                time.sleep(0.5)
            yield
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)
        log.close()
