"""Proof on a real GPU that a slimmed torch computes the same bits, and that another card is refused by name.

Run it where torch and an NVIDIA GPU are: ``PYTHONPATH=. python3 tests/gpu/check_slim.py``. It copies the installed
torch (and NCCL) to a scratch folder twice, slims one copy for the GPU that is there and one for another, and runs the
same work on the untouched and both slimmed ones. Needs the standard library, torch and 6 GB of scratch space.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

if sys.version_info < (3, 11):
    from pip._vendor import tomli

    sys.modules["tomli"] = tomli

from envbuilder.audit.arch import Arch
from envbuilder.audit.slim import refuse_other_card, slim_tree
from envbuilder.errors import EnvbuilderError

WORKLOAD = Path(__file__).with_name("workload.py")


def copy_site(site: Path, target: Path) -> None:
    """The parts of ``site`` that slim changes as copies, the rest of nvidia/ as links, in a folder of their own."""
    target.mkdir()
    shutil.copytree(site / "torch", target / "torch", symlinks=True)
    for info in (*site.glob("torch-*.dist-info"), *site.glob("nvidia_nccl*.dist-info")):
        shutil.copytree(info, target / info.name)
    if (site / "nvidia").is_dir():
        (target / "nvidia").mkdir()
        for part in (site / "nvidia").iterdir():
            if part.name == "nccl":
                shutil.copytree(part, target / "nvidia" / part.name, symlinks=True)
            else:
                (target / "nvidia" / part.name).symlink_to(part)


def work(site: Path | None) -> tuple[int, dict[str, str], str, float]:
    """Run the workload with torch from ``site``; exit code, digests, tail of standard error, seconds."""
    env = dict(os.environ)
    if site:
        env["PYTHONPATH"] = str(site)
    started = time.monotonic()
    done = subprocess.run([sys.executable, str(WORKLOAD)], env=env, capture_output=True, text=True, timeout=120)
    seconds = time.monotonic() - started
    lines = done.stdout.strip().splitlines()
    return done.returncode, json.loads(lines[-1]) if done.returncode == 0 else {}, done.stderr[-1500:], seconds


def main() -> int:
    origin = importlib.util.find_spec("torch").origin
    site = Path(origin).parent.parent
    out = Path(os.environ.get("OUT", "."))
    query = (
        "import torch; "
        "print(*torch.cuda.get_device_capability(), torch.cuda.get_device_name(), torch.__version__, sep='|')"
    )
    said = subprocess.run([sys.executable, "-c", query], capture_output=True, text=True, check=True).stdout.strip()
    major, minor, name, version = said.split("|")
    here = Arch(int(major), int(minor))
    other = Arch(7, 5) if here != Arch(7, 5) else Arch(8, 0)
    result: dict[str, object] = {"gpu": name, "sm": here.sm, "torch": version}
    print(result, flush=True)
    code, untouched, errors, seconds = work(None)
    assert code == 0, errors
    result["untouched"] = {"seconds": seconds, "results": len(untouched) - 1}
    failed = False
    with tempfile.TemporaryDirectory(prefix="slim-") as scratch:
        for arch in (here, other):
            root = Path(scratch) / arch.sm
            copy_site(site, root)
            started = time.monotonic()
            record = slim_tree(root, arch)
            facts: dict[str, object] = {
                "slim_seconds": time.monotonic() - started,
                "files": [
                    {"path": f.path, "size": f.size, "blanked": f.bytes_blanked, "images": f.images_blanked,
                     "on_disk": (root / f.path).stat().st_blocks * 512, "kept": f.kept}
                    for f in record.files
                ],
            }  # fmt: skip
            result[arch.sm] = facts
            code, digests, errors, seconds = work(root)
            differing = [k for k in untouched if k != "torch" and digests.get(k) != untouched[k]]
            facts["run"] = {
                "exit": code, "seconds": seconds, "from_scratch": str(root) in digests.get("torch", ""),
                "same": len(untouched) - 1 - len(differing), "differing": differing,
                "error": "" if code == 0 else errors.strip().splitlines()[-5:],
            }  # fmt: skip
            print(arch.sm, facts["run"], flush=True)
            failed = failed or (arch == here and bool(differing or code or str(root) not in digests["torch"]))
            try:
                refuse_other_card(record, (here.major, here.minor), name)
                facts["refusal"] = ""
            except EnvbuilderError as error:
                facts["refusal"] = f"{error.message} {error.cure} (exit {error.exit_code})"
            failed = failed or bool(facts["refusal"]) == (arch == here)
            shutil.rmtree(root)
    result["proven"] = not failed
    (out / "slim-gpu.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
