"""The overrides of verl's configuration that go with ``external_lib``, as the launch of ``main_ppo`` takes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).with_name("verl_overrides.json")


def table() -> dict[str, Any]:
    """The data file: the verl release it was composed and run on, and each override with its reason."""
    data: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return data


def verl_overrides(dtype: str = "float32") -> list[str]:
    """Arguments for ``python -m verl.trainer.main_ppo``, ``key=value`` each, for a stack that computes in ``dtype``."""
    data = table()
    names = {"{dtype}": data["dtype_names"][dtype], "{torch_dtype}": dtype}
    return [f"{row['key']}={names.get(row['value'], row['value'])}" for row in data["overrides"]]
