"""What a host reports of its driver, cards and libraries: one form for the live host and for a replayed file.

A file for ``verify --probe`` is a JSON object of the keys below; everything is optional, and what is missing is not
known. ``docs/verify.md`` describes it. Units stand in the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(frozen=True)
class Card:
    """One card as NVML and nvidia-smi report it. ``index`` is nvidia-smi's, which is PCI order."""

    index: int
    name: str = ""
    uuid: str = ""
    pci: str = ""
    cc: tuple[int, int] | None = None
    mig: bool = False
    memory_mib: float | None = None
    memory_used_mib: float | None = None
    temp_c: float | None = None
    temp_idle_c: float | None = None
    temp_load_c: float | None = None
    temp_slowdown_c: float | None = None
    throttle: tuple[str, ...] = ()
    power_w: float | None = None
    power_limit_w: float | None = None
    persistence: bool | None = None
    compute_mode: str = ""
    ecc: bool | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    retired_pages_pending: bool | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_gen: int | None = None
    pcie_gen_max: int | None = None
    clock_mhz: float | None = None
    clock_max_mhz: float | None = None
    processes: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """How messages name the card: index, name, and UUID and PCI address where known."""
        more = ", ".join(part for part in (self.uuid, self.pci) if part)
        return f"GPU {self.index} {self.name}".rstrip() + (f" ({more})" if more else "")


@dataclass(frozen=True)
class Torch:
    """What torch says of itself and of the devices it sees."""

    version: str = ""
    cuda: str = ""
    arch_list: tuple[str, ...] = ()
    is_available: bool | None = None
    device_count: int | None = None
    alloc_ok: bool | None = None
    is_bf16_supported: bool | None = None
    cudnn: int | None = None
    cudnn_path: str = ""
    error: str = ""


@dataclass(frozen=True)
class HostFacts:
    """Everything known of a host. ``cuda`` are the devices in CUDA's own order; ``unread`` the keys nothing reads."""

    driver: str = ""
    driver_cuda: str = ""
    driver_module: str = ""
    driver_open: bool | None = None
    nvml_error: str = ""
    no_driver: bool = False
    cards: tuple[Card, ...] | None = None
    cuda: tuple[Card, ...] = ()
    torch: Torch | None = None
    system_cudnn: str = ""
    system_cudnn_path: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    devices: Mapping[str, bool] = field(default_factory=dict)
    runtime: bool | None = None
    runtime_error: str = ""
    log: tuple[str, ...] = ()
    kernel_ok: bool | None = None
    kernel_error: str = ""
    shm_mib: float | None = None
    unread: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether anything at all was reported."""
        return self != HostFacts(unread=self.unread)

    def card(self, index: int) -> Card | None:
        """The card with nvidia-smi's ``index``."""
        return next((card for card in self.cards or () if card.index == index), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-typed, in the form ``read_facts`` reads; what is not known is left out."""
        data = {
            "driver": self.driver,
            "driver_cuda": self.driver_cuda,
            "driver_module": self.driver_module,
            "driver_open": self.driver_open,
            "nvml_error": self.nvml_error,
            "no_driver": self.no_driver or None,
            "gpus": None if self.cards is None else [_plain(card) for card in self.cards],
            "cuda": [_plain(card) for card in self.cuda],
            "torch": _plain(self.torch) if self.torch else None,
            "system": {"cudnn": self.system_cudnn, "path": self.system_cudnn_path} if self.system_cudnn else None,
            "env": dict(self.env),
            "devices": dict(self.devices),
            "nvidia_runtime": self.runtime,
            "runtime_error": self.runtime_error,
            "dmesg": list(self.log),
            "kernel_test": None if self.kernel_ok is None else {"ok": self.kernel_ok, "error": self.kernel_error},
            "shm_mib": self.shm_mib,
        }
        return {
            key: value
            for key, value in data.items()
            if value not in (None, "", [], {}) or (key == "gpus" and value is not None)
        }


def _plain(part: Card | Torch) -> dict[str, Any]:
    out = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(part).items()
        if value is not None and value != "" and value != ()
    }
    if isinstance(part, Card) and part.cc:
        out["cc"] = f"{part.cc[0]}.{part.cc[1]}"
    return out


CARD_FIELDS = frozenset(f.name for f in fields(Card))
TORCH_FIELDS = frozenset(f.name for f in fields(Torch))
