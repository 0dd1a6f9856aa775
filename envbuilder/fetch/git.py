"""Source trees by commit: a bare repository a commit in the cache. Git's own hashes prove the bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from envbuilder import data
from envbuilder.errors import HostError, IntegrityError, SourceError
from envbuilder.lock.mirrors import Mirrors
from envbuilder.lock.model import GitArtifact
from envbuilder.report.progress import Progress


def repository_of(artifact: GitArtifact) -> Path:
    """Where the bare repository that holds the commit is, or will be."""
    return data.cache_root() / "git" / artifact.commit[:2] / artifact.commit


def fetch_commit(artifact: GitArtifact, mirrors: Mirrors, progress: Progress) -> Path:
    """Have the commit in the cache; its bare repository. Nothing is asked when it is there.

    Every object is hashed as it arrives (``fsckObjects``), and the commit's own name is the hash of all of it.
    Raises SourceError naming each address that did not serve it, HostError when there is no git.
    """
    path = repository_of(artifact)
    if path.is_dir():
        return path
    if shutil.which("git") is None:
        raise HostError("git is not installed", cure="Install it: apt-get install git")
    path.parent.mkdir(parents=True, exist_ok=True)
    said = []
    for address in mirrors.addresses(artifact.repository):
        folder = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{artifact.commit}."))
        try:
            progress.item(f"{artifact.name} {artifact.tag} from {address}")
            _git("init", "--quiet", "--bare", str(folder))
            fetched = _git(
                *("-C", str(folder), "-c", "transfer.fsckObjects=true", "-c", "fetch.fsckObjects=true"),
                *("fetch", "--quiet", "--depth=1", "--no-tags", "--", address, artifact.commit),
            )
            progress.log(fetched.stderr)
            if fetched.returncode:
                said.append(f"{address}: {_last_line(fetched.stderr)}")
                continue
            _check(folder, artifact)
            folder.rename(path)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return path
    raise SourceError(
        f"{artifact.name} {artifact.tag} (commit {artifact.commit[:12]}) cannot be fetched",
        cure="Check the network and the proxy, or set a mirror of the git host in envbuilder.toml (docs/mirrors.md).",
        detail="\n".join(said),
    )


def checkout(artifact: GitArtifact, folder: Path) -> Path:
    """Make ``folder`` the tree of the commit, as ``git archive`` gives it; the folder. The commit must be there."""
    repository = repository_of(artifact)
    _check(repository, artifact)
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.Popen(
        ["git", "-C", str(repository), "archive", "--format=tar", artifact.commit],
        stdout=subprocess.PIPE,
        env=_environment(),
    )
    unpacked = subprocess.run(["tar", "-x", "-C", str(folder), "--no-same-owner"], stdin=archive.stdout, check=False)
    if archive.wait() or unpacked.returncode:
        raise IntegrityError(
            f"the tree of {artifact.name} {artifact.commit[:12]} cannot be written out",
            cure=f"Remove {repository} and fetch again.",
        )
    return folder


def _check(repository: Path, artifact: GitArtifact) -> None:
    """Raise IntegrityError unless the repository holds the commit whole."""
    checked = _git("-C", str(repository), "fsck", "--no-dangling", "--no-progress", artifact.commit)
    if checked.returncode:
        raise IntegrityError(
            f"the copy of {artifact.name} {artifact.commit[:12]} is damaged or incomplete",
            cure=f"Remove {repository} and fetch again.",
            detail=checked.stderr,
        )


def _environment() -> dict[str, str]:
    # No question is put to the user, and no setting of theirs rewrites what is fetched; proxies and certificates stay.
    return {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, env=_environment())


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
