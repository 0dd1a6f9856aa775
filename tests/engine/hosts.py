"""A registry and other hosts of the tests' own, out of Debian's packages unpacked into a folder.

Nothing is installed that would start a service on this host, and nothing listens but on loopback.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

USER, PASSWORD = "team", "a test's secret"
# htpasswd -nbB of the two above.
HTPASSWD = "team:$2b$05$brLlQRDFFtWcBYBiXpUWRucmTziW4DsVGDUqUXQnryU8E5LP.DkkG"


def unpacked(folder, *packages):
    """Download ``packages`` with apt, whose signatures it checks, and unpack them; the root they lie under."""
    root = folder / "root"
    if not root.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        apt = ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", *packages]
        done = subprocess.run(apt, cwd=folder, check=False, capture_output=True)
        if done.returncode != 0:
            subprocess.run(["apt-get", "-q", "update"], check=True, capture_output=True)
            subprocess.run(apt, cwd=folder, check=True, capture_output=True)
        for deb in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(deb), str(root)], check=True)
    return root


def libraries(root):
    found = [root / "lib/x86_64-linux-gnu", root / "usr/lib/x86_64-linux-gnu"]
    return {"LD_LIBRARY_PATH": ":".join(map(str, found))}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def wait_until(ready, process, log):
    for _ in range(300):
        if ready():
            return
        assert process.poll() is None, log.read_text()[-2000:]
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-2000:])


@contextlib.contextmanager
def running(command, log, ready, **more):
    """A program in the background, ended at the end."""
    with log.open("w") as stream:
        process = subprocess.Popen(command, stdout=stream, stderr=stream, **more)
        try:
            wait_until(ready, process, log)
            yield process
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextlib.contextmanager
def registry(folder):
    """Debian's docker-registry (2.8.2) on loopback, with a login; its address and where its blobs lie."""
    root = unpacked(folder / "packages", "docker-registry")
    port = free_port()
    (folder / "htpasswd").write_text(HTPASSWD + "\n")
    (folder / "config.yml").write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'data'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\nlog: {{level: warn}}\n"
        f"auth: {{htpasswd: {{realm: tests, path: {folder / 'htpasswd'}}}}}\n"
    )

    def answers():
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/", timeout=5)
        except urllib.error.HTTPError as error:
            return error.code == 401
        except OSError:
            return False
        return True

    program = str(root / "usr/bin/docker-registry")
    with running([program, "serve", str(folder / "config.yml")], folder / "log", answers):
        yield f"127.0.0.1:{port}", folder / "data" / "docker/registry/v2/blobs/sha256"


@contextlib.contextmanager
def flaky(address, cuts):
    """A line to ``address`` that breaks: each connection after as many bytes from the client as ``cuts`` says."""
    port = free_port()
    listener = socket.create_server(("127.0.0.1", port))
    host, _, there = address.partition(":")

    def pump(source, target, budget):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if budget is not None and (budget := budget - len(data)) < 0:
                    break
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve():
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection((host, int(there)))
                budget = cuts.pop(0) if cuts else None
                threading.Thread(target=pump, args=(client, server, budget), daemon=True).start()
                threading.Thread(target=pump, args=(server, client, None), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        listener.close()


@contextlib.contextmanager
def ssh_host(folder):
    """A host that has sshd and podman's socket; the folder of an ``ssh`` that knows it as ``p40-host``."""
    root = unpacked(
        folder / "packages",
        *("openssh-server", "libwrap0", "podman", "conmon", "libsubid4", "libgpgme11", "libassuan0"),
    )
    env = {**os.environ, **libraries(root)}
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/graph"\nrunroot = "{folder}/run"\n'
    )
    (folder / "containers.conf").write_text(f'[engine]\nconmon_path = ["{root}/usr/bin/conmon"]\n')
    engine = folder / "podman.sock"
    own = {
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        "CONTAINERS_CONF": str(folder / "containers.conf"),
    }
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(command, check=True)
    shutil.copyfile(folder / "user.pub", folder / "authorized")
    port = free_port()
    (folder / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"AuthorizedKeysFile {folder}/authorized\nPasswordAuthentication no\nPermitRootLogin yes\n"
        f"SetEnv DOCKER_HOST=unix://{engine}\n"
    )
    (folder / "config").write_text(
        f"Host p40-host\n  HostName 127.0.0.1\n  Port {port}\n  User root\n  IdentityFile {folder}/user\n"
        f"  UserKnownHostsFile {folder}/known\n  StrictHostKeyChecking accept-new\n"
    )
    # sshd wants a user and a folder of its own: it gets them in a mount namespace, and this host none.
    users = Path("/etc/passwd").read_text()
    (folder / "passwd").write_text(users + "sshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\n")
    start = (
        f"mount --bind {folder}/passwd /etc/passwd && mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && "
        f"exec {root}/usr/sbin/sshd -D -e -f {folder}/sshd_config"
    )
    (folder / "bin").mkdir()
    (folder / "bin" / "ssh").write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {folder}/config "$@"\n')
    (folder / "bin" / "ssh").chmod(0o755)

    def reachable():
        command = [str(folder / "bin" / "ssh"), "p40-host", "true"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0

    podman = [str(root / "usr/bin/podman"), "system", "service", "--time=0", f"unix://{engine}"]
    with (
        running(podman, folder / "podman.log", engine.exists, env={**env, **own}),
        running(["unshare", "--mount", "sh", "-c", start], folder / "sshd.log", reachable, env=env),
    ):
        yield folder / "bin", own
