"""The report as one HTML page that needs no other file and no network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from envbuilder.files import write_text
from envbuilder.report.model import Report
from envbuilder.report.plots import Plot, memory, step_times

_NAMES = {"ppo": "PPO in one process", "soak": "Soak", "trainer": "verl.trainer.main_ppo"}


def write_html(report: Report, path: Path) -> None:
    """Write the page. Raises HostError when the file cannot be written."""
    write_text(path, as_html(report))


def as_html(report: Report) -> str:
    """The page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    data = report.to_dict()
    measured: Mapping[str, Any] = data["facts"].get("measured", {})
    return environment.get_template("report.html.j2").render(
        report=data,
        passport={key: value for key, value in data["facts"].get("passport", {}).items() if value},
        hosts=data["facts"].get("hosts", []),
        cold=measured.get("cold start", {}),
        sections=[_section(name, measured[name]) for name in _NAMES if measured.get(name, {}).get("steps")],
        counts=_counts(data["checks"]),
        raw=json.dumps(data, indent=1, ensure_ascii=False),
    )


def _section(name: str, part: Mapping[str, Any]) -> dict[str, Any]:
    steps = part["steps"]
    plots: list[Plot] = [step_times("Step time by phase", steps)]
    if any(step.get("memory_bytes") for step in steps):
        plots.append(memory("Memory by step", steps))
    phases = part.get("phases s", {})
    return {
        "title": _NAMES[name],
        "about": {key: part[key] for key in ("device", "shape", "sizes") if key in part},
        "phases": phases,
        "total": sum(phases.values()),
        "memory": part.get("memory by module MiB", {}),
        "plots": plots,
    }


def _counts(checks: list[dict[str, Any]]) -> dict[str, int]:
    order = ("passed", "failed", "not enough to tell", "not proven here")
    return {status: n for status in order if (n := sum(check["status"] == status for check in checks))}
