"""Nothing is offloaded: weights and optimiser states of actor, reference and critic lie on the device in every step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from envbuilder.smoke.check import Outcome, failed

_ROLES = ("actor", "reference", "critic")


def offload_fault(placements: Sequence[Mapping[str, Any]]) -> Outcome | None:
    """The failed outcome for what the guards of all processes of a run saw (``facts["placement"]``), None when nothing
    was offloaded. A role that nobody looked at is a fault too."""
    faults = [fault for role in _ROLES if (fault := _fault(role, _of(role, placements)))]
    if not faults:
        return None
    return failed(
        f"{'; '.join(faults)}: the run does not show that the card's memory holds everything",
        "Leave param_offload, optimizer_offload and offload_policy of actor, reference and critic False, and import "
        "envbuilder.smoke.external_lib: without it verl offloads the reference whatever its setting says.",
        placements=list(placements),
    )


def evidence(placements: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What a report says when there is no fault: MiB of each role, on which device, looked at how often."""
    parts = []
    for role in _ROLES:
        seen = _of(role, placements)
        weights, states = (max(p[name] for p in seen) / 2**20 for name in ("weights_bytes", "optimiser_bytes"))
        parts.append(f"{role} {weights:.1f}" + (f" + {states:.1f}" if states else ""))
    devices = ", ".join(sorted({p["device"] for p in placements if p["roles"]}))
    looks = min(sum(p["looks"] for p in _of(role, placements)) for role in _ROLES)
    told = f"{devices} holds weights + optimiser states, MiB: {', '.join(parts)}; looked at {looks} times"
    return {"nothing off the device": told}


def _of(role: str, placements: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [placement["roles"][role] for placement in placements if role in placement["roles"]]


def _fault(role: str, seen: Sequence[Mapping[str, Any]]) -> str:
    off = max((placement["off_device_bytes"] for placement in seen), default=0)
    if not any(placement["looks"] and placement["weights_bytes"] for placement in seen):
        return f"nobody looked where the {role} lies"
    if off:
        return f"{off / 2**20:.1f} MiB of the {role} lay off the device"
    if any(placement["fsdp_offloads"] for placement in seen):
        return f"FSDP offloads the {role} to the CPU"
    return ""
