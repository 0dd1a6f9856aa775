"""Reading a probe file. Tools name the same fact differently; the names that nvidia-smi, NVML and torch use are known.

A key that nothing reads is kept in ``HostFacts.unread`` and shown, so that no fact is dropped in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.smoke.facts import CARD_FIELDS, TORCH_FIELDS, Card, HostFacts, Torch

_NAMES = json.loads(Path(__file__).with_name("probe_names.json").read_text(encoding="utf-8"))
_YES = {"enabled", "on", "yes", "true", "1", "active"}


def read_facts(path: Path) -> HostFacts:
    """Read a probe file. Raises InputError when it is no JSON object or a value has the wrong type."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the probe: {error.strerror}", place=Place(str(path)), cure="Give a file that exists."
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        line = getattr(error, "lineno", None)
        raise InputError(
            f"the probe is not JSON: {getattr(error, 'msg', error)}",
            place=Place(str(path), line),
            cure="It is one JSON object; docs/verify.md shows its keys.",
        ) from None
    try:
        return parse_facts(data)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise InputError(
            f"the probe holds a value of the wrong type: {error}",
            place=Place(str(path)),
            cure="docs/verify.md shows every key and what it holds.",
        ) from None


def parse_facts(data: Any) -> HostFacts:
    """The facts in a probe's data. Raises TypeError or ValueError for a value of the wrong type."""
    if not isinstance(data, Mapping):
        raise TypeError("it must be an object")
    unread = [key for key in data if key not in _NAMES["read"]]
    smi = data.get("nvidia_smi")
    nvml_error = data.get("nvml_error") or data.get("nvidia_smi_error") or (smi if isinstance(smi, str) else "")
    rows = data["gpus"] if "gpus" in data else smi if isinstance(smi, list) else None
    cards = None if rows is None else tuple(_card(i, row, unread) for i, row in enumerate(_list(rows, "gpus")))
    if rows is not None and isinstance(smi, list) and "gpus" in data and len(smi) == len(data["gpus"]):
        # Both given: nvidia-smi's rows complete the cards.
        merged = [{**b, **a} for a, b in zip(data["gpus"], smi, strict=True)]
        cards = tuple(_card(i, row, unread) for i, row in enumerate(merged))
    system = data.get("system") or {}
    kernel = data.get("kernel_test") or {}
    env = {str(k): str(v) for k, v in (data.get("env") or {}).items()}
    return HostFacts(
        driver=str(data.get("driver") or data.get("driver_version") or ""),
        driver_cuda=str(data.get("driver_cuda") or data.get("cuda_version") or ""),
        driver_module=str(data.get("driver_module") or data.get("kernel_module") or data.get("module_version") or ""),
        driver_open=_open(data),
        nvml_error=str(nvml_error or ""),
        no_driver=bool(data.get("no_driver", False)) or ("driver" in data and data["driver"] in (None, "", "none")),
        cards=cards,
        cuda=tuple(_card(i, row, unread) for i, row in enumerate(_list(data.get("cuda") or [], "cuda"))),
        torch=_torch(data["torch"], unread) if data.get("torch") else None,
        system_cudnn=str(system.get("cudnn", "") or ""),
        system_cudnn_path=str(system.get("path", "") or system.get("cudnn_path", "") or ""),
        env=env,
        devices=_devices(data.get("devices", data.get("dev")) or {}),
        runtime=_runtime(data),
        runtime_error=str(data.get("runtime_error") or ""),
        log=tuple(
            str(x)
            for key in ("dmesg", "kernel_log", "log", "xid")
            for x in _lines(data.get(key), "Xid" if key == "xid" else "")
        ),
        kernel_ok=kernel.get("ok") if kernel else None,
        kernel_error=str(kernel.get("error", "") or ""),
        shm_mib=None if data.get("shm_mib") is None else float(data["shm_mib"]),
        unread=tuple(unread),
    )


def _card(position: int, row: Any, unread: list[str]) -> Card:
    if not isinstance(row, Mapping):
        raise TypeError(f"a card must be an object, not {row!r}")
    values: dict[str, Any] = {"index": position}
    for key, value in row.items():
        name = _NAMES["card"].get(key, key)
        if name not in CARD_FIELDS:
            unread.append(f"gpus.{key}")
        elif value is not None:
            values[name] = _CARD_READERS.get(name, str)(value)
    return Card(**values)


def _torch(data: Any, unread: list[str]) -> Torch:
    if not isinstance(data, Mapping):
        raise TypeError("torch must be an object")
    values: dict[str, Any] = {}
    for key, value in data.items():
        name = _NAMES["torch"].get(key, key)
        if name not in TORCH_FIELDS:
            unread.append(f"torch.{key}")
        elif value is not None:
            values[name] = _TORCH_READERS.get(name, str)(value)
    return Torch(**values)


def _capability(value: Any) -> tuple[int, int]:
    if isinstance(value, (list, tuple)):
        major, minor = value
    else:
        text = str(value).removeprefix("sm_")
        major, minor = text.split(".") if "." in text else (text[:-1], text[-1])
    return int(major), int(minor)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(f"{value!r} is no number")
    if isinstance(value, (int, float)):
        return float(value)
    found = re.match(r"\s*(-?\d+(?:\.\d+)?)", str(value))
    if not found:
        raise ValueError(f"{value!r} is no number")
    return float(found.group(1))


def _count(value: Any) -> int:
    # A PCIe link is also written x16, a generation "Gen3" or "3.0".
    return int(_number(re.sub(r"^(x|gen)\s*", "", str(value), flags=re.I) if isinstance(value, str) else value))


def _flag(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).strip().lower() in _YES


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):
        return tuple(str(k) for k, v in value.items() if _flag(v))
    items = re.split(r"[,;|]", value) if isinstance(value, str) else list(value)
    none = {"", "none", "not active", "n/a", "gpu idle", "idle"}
    return tuple(str(item).strip() for item in items if str(item).strip().lower() not in none)


def _processes(value: Any) -> tuple[str, ...]:
    out = []
    for item in [value] if isinstance(value, (str, Mapping)) else value:
        if isinstance(item, Mapping):
            pid, name = item.get("pid", "?"), item.get("name") or item.get("process_name") or ""
            used = next((item[k] for k in ("used_mib", "memory_mib", "used_memory") if k in item), None)
            out.append(f"{name} (pid {pid}{f', {used} MiB' if used is not None else ''})".strip())
        else:
            out.append(str(item))
    return tuple(out)


def _cudnn(value: Any) -> int:
    """90100 for 9.1.0 (from 9 on: major*10000 + minor*100 + patch; before: major*1000 + minor*100 + patch)."""
    if isinstance(value, int):
        return value
    parts = [int(part) for part in str(value).split(".")[:3]] + [0, 0]
    return parts[0] * (10000 if parts[0] >= 9 else 1000) + parts[1] * 100 + parts[2]


_CARD_READERS: dict[str, Any] = {
    "index": int, "cc": _capability, "mig": _flag, "throttle": _words, "persistence": _flag, "ecc": _flag,
    "ecc_corrected": _count, "ecc_uncorrected": _count, "retired_pages_pending": _flag, "pcie_width": _count,
    "pcie_width_max": _count, "pcie_gen": _count, "pcie_gen_max": _count, "processes": _processes,
    **{name: _number for name in CARD_FIELDS if name.endswith(("_c", "_w", "_mib", "_mhz"))},
}  # fmt: skip
_TORCH_READERS: dict[str, Any] = {
    "arch_list": lambda v: tuple(str(a) for a in (v.split() if isinstance(v, str) else v)), "is_available": _flag,
    "device_count": _count, "alloc_ok": _flag, "is_bf16_supported": _flag, "cudnn": _cudnn,
}  # fmt: skip


def _open(data: Mapping[str, Any]) -> bool | None:
    for key in ("driver_open", "open_modules", "open_kernel_modules"):
        if key in data:
            return _flag(data[key])
    licence = data.get("module_license") or data.get("module_licence")
    # The open modules declare "Dual MIT/GPL", the proprietary ones "NVIDIA".
    return None if licence is None else "GPL" in str(licence)


def _runtime(data: Mapping[str, Any]) -> bool | None:
    for key in ("nvidia_runtime", "runtime", "docker_runtimes"):
        value = data.get(key)
        if value is None:
            continue
        if isinstance(value, (list, Mapping)):
            return "nvidia" in value
        return _flag(value) or str(value).lower() in ("nvidia", "cdi")
    return None


def _devices(value: Any) -> dict[str, bool]:
    if isinstance(value, Mapping):
        return {str(k): _flag(v) for k, v in value.items()}
    return {str(k): True for k in value}


def _lines(value: Any, prefix: str) -> Iterable[str]:
    if value is None:
        return []
    rows = value.splitlines() if isinstance(value, str) else value if isinstance(value, list) else [value]
    return [f"{prefix} {row}" if prefix and prefix.lower() not in str(row).lower() else str(row) for row in rows]


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{name} must be a list")
    return value
