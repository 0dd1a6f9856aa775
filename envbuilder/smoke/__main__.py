"""``python -m envbuilder.smoke``: the suite, in the image. JSON lines on standard output, the last is the report.

Exit: 0 proven, 1 a check failed, 2 wrong use, 3 not enough to tell.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from envbuilder.errors import EnvbuilderError
from envbuilder.smoke.context import Options
from envbuilder.smoke.manifest import IMAGE_MANIFEST, load_manifest
from envbuilder.smoke.nvml import of_card
from envbuilder.smoke.registry import CHECKS, select
from envbuilder.smoke.runner import Plan, run_suite
from envbuilder.smoke.verdict import report


def main(arguments: list[str] | None = None) -> int:
    """Run the suite; the exit code."""
    given = _parser().parse_args(arguments)
    # An engine ends a container with SIGTERM: leave by the ordinary way, so that the worker is ended too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    if given.list:
        for spec in CHECKS:
            print(json.dumps({"id": spec.id, "title": spec.title, "proves": spec.proves, "limit s": spec.limit_s,
                              "needs": sorted(need.value for need in spec.needs)}))  # fmt: skip
        return 0
    try:
        manifest = load_manifest(given.profile)
        specs = select(_names(given.only), _names(given.skip))
        options = Options(given.device, given.trainer, given.soak, given.steps, str(given.questions or ""))
        with tempfile.TemporaryDirectory() as folder:
            host = given.host or _ask_nvml(given, Path(folder))
            result = run_suite(Plan(specs, options, given.profile, host, given.gpu), _print)
        final = report(result, options, manifest)
    except EnvbuilderError as error:
        place = f"{error.place}: " if error.place else ""
        print(f"error: {place}{error.message}\ndo: {error.cure}", file=sys.stderr)
        return error.exit_code
    _print(final.to_dict())
    return final.verdict.exit_code


def _ask_nvml(given: argparse.Namespace, folder: Path) -> Path | None:
    """What NVML says in here of the card, as a file. None for a CPU, and where NVML does not answer."""
    if given.device != "cuda":
        return None
    gpu = given.gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0] or "0"
    try:
        facts = of_card(gpu)
    except ImportError:
        return None
    if not facts.cards:
        return None
    path = folder / "host.json"
    path.write_text(json.dumps(facts.to_dict()), encoding="utf-8")
    return path


def _print(event: dict[str, Any]) -> None:
    print(json.dumps(event, ensure_ascii=False), flush=True)


def _names(values: list[str]) -> list[str]:
    return [name for value in values for name in value.split(",") if name]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m envbuilder.smoke", description="Prove a stack on its card.")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: run what a CPU can show")
    parser.add_argument("--gpu", help="index (nvidia-smi's order) or UUID, for CUDA_VISIBLE_DEVICES")
    parser.add_argument("--profile", type=Path, default=IMAGE_MANIFEST, help="stack, GPU profile and lock digest")
    parser.add_argument("--host", type=Path, help="what NVML said on the host (JSON); asked in here without it")
    parser.add_argument("--only", action="append", default=[], metavar="IDS", help="run these checks only")
    parser.add_argument("--skip", action="append", default=[], metavar="IDS", help="leave these checks out")
    parser.add_argument("--list", action="store_true", help="print every check and leave")
    parser.add_argument("--trainer", action="store_true", help="also run verl.trainer.main_ppo")
    parser.add_argument("--soak", action="store_true", help="also look for growth over many steps")
    parser.add_argument("--questions", type=Path, help="GSM8K's JSON lines, as prompts of --trainer and --soak")
    parser.add_argument("--steps", type=int, default=0, help="steps of --trainer and --soak")
    return parser


if __name__ == "__main__":
    sys.exit(main())
