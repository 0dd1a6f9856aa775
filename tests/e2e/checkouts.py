"""Checkouts of the project, each in surroundings of its own: folder, user, time zone, locale, umask, cache, storage."""

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envbuilder import data
from envbuilder.lock.model import Lock

PROJECT = Path(__file__).parents[2]
# Another user's process finds this Python and its packages here, wherever they lie and whoever may read that.
_AS_ANOTHER = """
set -e
mount --bind "$1" "$3/python"; mount --bind "$2" "$3/venv"; mount --bind "$3/fuse" /dev/fuse
umask "$4"; user="$5"; shift 5
exec setpriv --reuid "$user" --regid "$user" --init-groups "$@"
"""


@dataclass(frozen=True)
class Surroundings:
    """Where and by whom it is built. ``user`` is None for root; another user's buildah runs without root.

    ``storage`` is "overlay" (the kernel's own), "fuse-overlayfs" or "vfs".
    """

    folder: str
    user: str | None = None
    umask: str = "022"
    shared_group: bool = False
    storage: str = "overlay"
    environment: dict[str, str] = field(default_factory=dict)


class Checkout:
    """A clone of the project's last commit below ``root``, with a cache that holds just the lock's files."""

    def __init__(self, root: Path, surroundings: Surroundings, lock: Lock) -> None:
        self._is = surroundings
        self.root = root / surroundings.folder
        self.root.mkdir(parents=True)
        self.code = self.root / "project"
        subprocess.run(["git", "clone", "--quiet", str(PROJECT), str(self.code)], check=True)
        for name in ("python", "venv", "run", "home", "cache"):
            (self.root / name).mkdir()
        (self.root / "run").chmod(0o700)
        # Hosts let every user open this device; here it is root's alone.
        os.mknod(self.root / "fuse", 0o666 | stat.S_IFCHR, os.makedev(10, 229))
        (self.root / "fuse").chmod(0o666)
        paths = {"graphroot": "graph", "rootless_storage_path": "graph", "runroot": "run/storage"}
        driver = "vfs" if surroundings.storage == "vfs" else "overlay"
        conf = ["[storage]", f'driver = "{driver}"', *(f'{key} = "{self.root / path}"' for key, path in paths.items())]
        if surroundings.storage == "fuse-overlayfs":
            conf += ["[storage.options.overlay]", 'mount_program = "/usr/bin/fuse-overlayfs"']
        (self.root / "storage.conf").write_text("\n".join(conf) + "\n")
        self._fill_cache(lock)
        if surroundings.shared_group:
            shutil.chown(self.root / "cache", group="users")
            (self.root / "cache").chmod(0o2775)
        if surroundings.user:
            subprocess.run(["chown", "-R", f"{surroundings.user}:", str(self.root)], check=True)
            for folder in (self.root, *self.root.parents):
                if folder.stat().st_uid == 0 and folder != Path("/"):
                    folder.chmod(folder.stat().st_mode | 0o111)

    def _fill_cache(self, lock: Lock) -> None:
        for artifact in (*lock.python, *(deb for deb in lock.debs if deb.target == "runtime")):
            source = data.cache_root() / "sha256" / artifact.sha256[:2] / artifact.sha256
            target = self.root / "cache" / "sha256" / artifact.sha256[:2] / artifact.sha256
            target.parent.mkdir(parents=True, exist_ok=True)
            # A link would be root's, and another user may not link it again.
            if self._is.user:
                shutil.copyfile(source, target)
            else:
                target.hardlink_to(source)

    def build(self, stack: str) -> dict[str, Any]:
        """Build ``stack``, base and layers anew; what ``build_once`` says of the image."""
        shutil.rmtree(self.root / "cache" / "rootfs", ignore_errors=True)
        done = self.run("-m", "tests.e2e.build_once", stack)
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return found

    def published(self, image: str) -> str:
        """The digest under which ``image`` leaves for other hosts."""
        script = (
            "import sys; from envbuilder.image.buildah import Buildah; from envbuilder.publish.export import export\n"
            "from envbuilder.report.progress import Silent\n"
            "print(export(Buildah(), sys.argv[1], Silent()).digest)"
        )
        done = self.run("-c", script, image)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run this Python in the checkout, in its surroundings."""
        python = self.root / "python" / "bin" / Path(sys.executable).resolve().name
        library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
        environment = {
            "PATH": f"{self.root}/venv/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(self.root / "home"),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "CONTAINERS_STORAGE_CONF": str(self.root / "storage.conf"),
            "ENVBUILDER_CACHE": str(self.root / "cache"),
            "PYTHONPATH": f"{self.code}:{self.root}/venv/{library}",
            "PYTHONDONTWRITEBYTECODE": "1",
            **self._is.environment,
        }
        script = ["unshare", "--mount", "sh", "-c", _AS_ANOTHER, "sh", sys.base_prefix, sys.prefix, str(self.root)]
        command = [*script, self._is.umask, self._is.user or "root", str(python), *arguments]
        return subprocess.run(command, cwd=self.code, env=environment, capture_output=True, text=True, check=False)

    def empty(self) -> None:
        """Remove every image, so that the next build finds nothing."""
        subprocess.run(["umount", str(self.root / "graph" / "overlay")], check=False, capture_output=True)
        for name in ("graph", "run/storage"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        leftovers = [
            line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if str(self.root) in line
        ]
        assert leftovers == [], leftovers


@contextmanager
def another_user(name: str) -> Iterator[str]:
    """A user of this host who may use buildah without root, for a while."""
    subprocess.run(["useradd", "--no-create-home", "--shell", "/usr/sbin/nologin", name], check=True)
    try:
        assert any(line.startswith(f"{name}:") for line in Path("/etc/subuid").read_text().splitlines())
        assert pwd.getpwnam(name).pw_uid != os.geteuid()
        yield name
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)
