"""Resolve what belongs to a PyTorch release on the client's own Python index, and show where releases.toml differs.

    python scripts/refresh_torch_releases.py 2.6.0 2.7.1
    python scripts/refresh_torch_releases.py --package xformers 0.0.29.post2 0.0.30

For a release: triton and cuDNN of the default build, the torchvision and torchaudio of the table against the torch they
ask for. With --package: the torch that each version of a package asks for (packages.toml, built_for). Only names and
versions are resolved, nothing is installed. Exit code 1 when a row differs.
"""

from __future__ import annotations

import re
import subprocess
import sys

from envbuilder.stack.compat.packages import built_for
from envbuilder.stack.compat.torch_builds import release


def resolved(name: str, version: str) -> dict[str, str]:
    """Name to version of everything that one pin brings along on Linux x86_64; empty when it does not resolve."""
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", "3.10",
               "--python-platform", "x86_64-unknown-linux-gnu", "-"]  # fmt: skip
    done = subprocess.run(command, input=f"{name}=={version}\n", capture_output=True, text=True)
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", done.stdout, re.MULTILINE))


def package(name: str, versions: list[str]) -> bool:
    """Compare the torch that versions of a package ask for; whether all rows agree."""
    good = True
    for version in versions:
        row = built_for(name, version)
        asked = resolved(name, version).get("torch", "does not resolve")
        print(f"{name} {version}: asks for torch {asked}; table {row.torch if row else 'none'}")
        good &= row is not None and row.torch == asked
    return good


def torch(version: str) -> bool:
    """Compare one release with its row; whether they agree."""
    row = release(version)
    found = resolved("torch", version)
    cudnn = next((value for name, value in found.items() if name.startswith("nvidia-cudnn")), "")
    print(f"torch {version}: triton {found.get('triton')}, cudnn {cudnn}; table {row}")
    good = row is not None and found.get("triton", "") == row.triton and cudnn == row.cudnn
    for name in ("torchvision", "torchaudio"):
        member = getattr(row, name, "")
        if member:
            asked = resolved(name, member).get("torch")
            print(f"  {name} {member} asks for torch {asked}")
            good &= asked == version
    return good


def main() -> int:
    """Run the comparisons that the arguments ask for."""
    words = sys.argv[1:]
    if words[:1] == ["--package"]:
        return int(not package(words[1], words[2:]))
    wrong = [version for version in words if not torch(version)]
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
