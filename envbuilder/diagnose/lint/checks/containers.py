"""Running containers: compose files, docker run lines, build contexts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from envbuilder.diagnose.lint.model import Hit, Recipe, Step

_RAY = re.compile(r"\b(ray|verl|vllm)\b|main_ppo|ray start|DataLoader|torchrun", re.IGNORECASE)
_LARGE = re.compile(r"\.(safetensors|pt|pth|bin|ckpt|gguf|parquet|tar|tar\.gz|tgz|zip|onnx|h5|npz|arrow)$")
LARGE_BYTES = 200 << 20


def check_compose(recipe: Recipe) -> Iterator[Hit]:
    """Services of a compose file."""
    data = recipe.data if isinstance(recipe.data, dict) else {}
    services = data.get("services")
    for name, service in (services if isinstance(services, dict) else {}).items():
        if isinstance(service, dict):
            yield from _service(recipe, str(name), service)


def _service(recipe: Recipe, name: str, service: dict[str, Any]) -> Iterator[Hit]:
    line = recipe.line_of("services", name)
    text = f"{_text(service.get('command'))} {_text(service.get('entrypoint'))} {service.get('image', '')}"
    environment = _environment(service.get("environment"))
    if (
        _RAY.search(text)
        and "shm_size" not in service
        and service.get("ipc") != "host"
        and "/dev/shm" not in str(service)  # noqa: S108 - looked for, not written
    ):
        yield Hit("compose-without-shm", line, (f"{name}: {text.strip()}",), {"service": name})
    deploy = service.get("deploy") if isinstance(service.get("deploy"), dict) else {}
    devices = _devices(deploy)
    gpu = (
        bool(devices)
        or service.get("runtime") == "nvidia"
        or "gpus" in service
        or "nvidia.com/gpu" in str(service.get("devices"))
    )
    if re.search(r"\bverl\b|\bvllm\b|main_ppo|torchrun|nvidia/cuda|cu1[12]\d", text) and not gpu:
        yield Hit("compose-without-gpu", line, (f"{name}: {text.strip()}",), {"service": name})
    for device in devices:
        capabilities = device.get("capabilities")
        flat = re.sub(r"[\[\]'\" ]", "", str(capabilities or "")).split(",")
        if "gpu" not in flat and str(device.get("driver", "")) in ("", "nvidia"):
            yield Hit("compose-gpu-without-capability", line, (f"devices: {device}",), {"service": name})
        ids = device.get("device_ids")
        if ids and device.get("count"):
            yield Hit("compose-count-and-ids", line, (f"devices: {device}",), {"service": name})
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        if (
            isinstance(ids, list)
            and visible
            and re.fullmatch(r"[\d,]+", visible)
            and max(int(v) for v in visible.split(",") if v) >= len(ids)
        ):
            yield Hit(
                "visible-devices-beyond-container",
                line,
                (f"device_ids: {ids}", f"CUDA_VISIBLE_DEVICES={visible}"),
                {"visible": visible, "count": str(len(ids))},
            )
    capabilities = environment.get("NVIDIA_DRIVER_CAPABILITIES", "")
    if capabilities and not {"all", "compute"} & set(capabilities.split(",")):
        yield Hit(
            "driver-capabilities-without-compute",
            line,
            (f"NVIDIA_DRIVER_CAPABILITIES={capabilities}",),
            {"value": capabilities},
        )


def _devices(deploy: Any) -> list[dict[str, Any]]:
    try:
        found = deploy["resources"]["reservations"]["devices"]
    except (KeyError, TypeError):
        return []
    return [d for d in found if isinstance(d, dict)] if isinstance(found, list) else []


def _environment(value: Any) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(k): "" if v is None else str(v) for k, v in value.items()}
    if isinstance(value, list):
        return {str(v).partition("=")[0]: str(v).partition("=")[2] for v in value}
    return {}


def _text(value: Any) -> str:
    return " ".join(str(v) for v in value) if isinstance(value, list) else str(value or "")


def check_runs(recipe: Recipe) -> Iterator[Hit]:
    """``docker run`` lines in scripts."""
    for step in recipe.steps:
        if step.argv[:1] not in (["docker"], ["podman"], ["nerdctl"]) or "run" not in step.argv[:3]:
            continue
        words = " ".join(step.argv)
        needs_gpu = re.search(r"\bverl\b|\bvllm\b|main_ppo|torchrun|cu1[12]\d|nvidia/cuda|nvidia-smi", words)
        if _RAY.search(words) and not re.search(r"--shm-size|--ipc[= ]host|/dev/shm", words):
            yield Hit("docker-run-without-shm", step.line, (_first(step),))
        if needs_gpu and not re.search(r"--gpus|--runtime[= ]nvidia|nvidia\.com/gpu|--device", words):
            yield Hit("docker-run-without-gpu", step.line, (_first(step),))
        match = re.search(r"--gpus[= ]\S*device=([\d,]+)", words)
        visible = re.search(r"(?:-e|--env)[= ]CUDA_VISIBLE_DEVICES=([\d,]+)", words)
        if match and visible:
            count = len([x for x in match.group(1).split(",") if x])
            if max(int(x) for x in visible.group(1).split(",") if x) >= count:
                yield Hit(
                    "visible-devices-beyond-container",
                    step.line,
                    (_first(step),),
                    {"visible": visible.group(1), "count": str(count)},
                )


def _first(step: Step) -> str:
    return step.text.splitlines()[0].rstrip("\\ ")


def check_listing(recipe: Recipe) -> Iterator[Hit]:
    """A listing of a build context: large files that nothing keeps out."""
    rows: list[tuple[int, str, int]] = recipe.data or []
    if any(path.endswith(".dockerignore") for _, path, _ in rows):
        return
    large = [(size, path, line) for size, path, line in rows if _LARGE.search(path) or size >= LARGE_BYTES]
    total = sum(size for size, _, _ in large)
    if total >= LARGE_BYTES:
        folders = sorted({path.lstrip("./").split("/")[0] for _, path, _ in large})
        yield Hit(
            "context-without-dockerignore",
            large[0][2],
            tuple(f"{_size(s)}  {p}" for s, p, _ in large[:4]),
            {"size": _size(total), "folders": ", ".join(folders)},
        )


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
