"""The state of the card: heat, ECC, the PCIe link, clocks and power, other programs, and what the kernel logged."""

from __future__ import annotations

import re

from envbuilder.smoke.check import Outcome, failed, not_proven, passed
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judge.tables import tables
from envbuilder.smoke.manifest import Manifest

# NVML's reasons that slow a card down because something is wrong; a power cap or an idle clock is none of them.
_BAD_THROTTLE = re.compile(r"hw|hardware|thermal|brake", re.I)


def judge_temperature(facts: HostFacts, card: Card) -> Outcome:
    """Temperature and throttle reasons. A passive card without airflow is the usual cause."""
    limits = tables()["temperature"]
    seen = {"now": card.temp_c, "idle": card.temp_idle_c, "load": card.temp_load_c}
    known = {name: value for name, value in seen.items() if value is not None}
    bad = [reason for reason in card.throttle if _BAD_THROTTLE.search(reason)]
    hot = max(known.values(), default=None)
    ceiling = min(limits["hot_c"], (card.temp_slowdown_c - 5) if card.temp_slowdown_c else limits["hot_c"])
    idle_hot = card.temp_idle_c is not None and card.temp_idle_c > limits["hot_idle_c"]
    told = ", ".join(f"{value:.0f} C {name}" for name, value in known.items())
    passive = any(part in card.name for part in tables()["passive"]["name_contains"])
    air = (
        "The card has no fan of its own: give it ducted airflow (a server's fan wall, or a blower with a shroud), "
        "then check the thermal paste."
        if passive
        else "Check fans, airflow and thermal paste."
    )
    if bad or idle_hot or (hot is not None and hot > ceiling):
        slowed = f"; slowed down by {', '.join(card.throttle)}" if card.throttle else ""
        return failed(
            f"{card.label}: temperature {told or 'not reported'}{slowed} (limit {ceiling:.0f} C, at idle "
            f"{limits['hot_idle_c']} C)",
            air,
            **{f"{name} C": value for name, value in known.items()},
            throttle=list(card.throttle),
        )
    if not known and not card.throttle:
        return not_proven("the card's temperature was not reported")
    return passed(f"temperature {told}", **{f"{name} C": value for name, value in known.items()})


def judge_log(facts: HostFacts) -> Outcome:
    """NVRM's Xid lines in the kernel log."""
    table = tables()["xid"]
    xids = [xid for line in facts.log if (xid := _xid(line))]
    aer = [line for line in facts.log if re.search(r"AER:|PCIe Bus Error", line)]
    hardware = [x for x in xids if x in table["hardware"]]
    if hardware:
        first = hardware[0]
        heat = any(c.temp_load_c and c.temp_load_c > tables()["temperature"]["hot_c"] for c in facts.cards or ())
        cause = "with the temperature reported, heat is the likely cause" if heat else "the log does not say why"
        return failed(
            f"the kernel logged Xid {first}: {table['hardware'][first]}"
            + (f"; {cause}" if first == "79" else "")
            + (f"; {len(aer)} PCIe error lines came with it" if aer else ""),
            "Hardware: check cooling, the power cables and the PCIe seat or riser, then try the card in another slot. "
            "Reinstalling software does not help.",
            xid=xids,
        )
    if aer:
        return failed(
            f"the kernel logged {len(aer)} PCIe errors: {aer[0].strip()}",
            "Reseat the card or replace the riser; set the slot to Gen3.",
        )
    if xids:
        return passed(
            f"Xid {', '.join(xids)} in the log: {table['software'].get(xids[0], 'not in our table')}, "
            "which a program can cause",
            xid=xids,
        )
    if not facts.log:
        return not_proven("the kernel log was not reported")
    return passed("no Xid in the kernel log")


def _xid(line: str) -> str | None:
    found = re.search(r"Xid\s*(?:\([^)]*\))?\s*:?\s*(\d+)", line)
    return found.group(1) if found else None


def judge_ecc(card: Card) -> Outcome:
    """ECC mode and counters."""
    if card.ecc_uncorrected:
        return failed(
            f"{card.label}: {card.ecc_uncorrected} uncorrected ECC errors",
            "A memory fault: see `nvidia-smi -q -d ECC,PAGE_RETIREMENT`, reset the card once; if they come back, "
            "replace it. Switching ECC off only hides them.",
            uncorrected=card.ecc_uncorrected,
        )
    if card.retired_pages_pending:
        return failed(
            f"{card.label}: memory pages wait to be retired", "Reboot, so that the driver retires them.", pending=True
        )
    if card.ecc is None and card.ecc_uncorrected is None:
        return not_proven("ECC was not reported")
    state = "on" if card.ecc else "off" if card.ecc is False else "mode not reported"
    return passed(f"ECC {state}, corrected {card.ecc_corrected or 0}, uncorrected 0", ecc=state)


def judge_pcie(card: Card, manifest: Manifest | None) -> Outcome:
    """Width and generation of the PCIe link. A link at idle may report a lower generation; its width stays."""
    if card.pcie_width is None:
        return not_proven("the PCIe link was not reported")
    widest = card.pcie_width_max
    if widest is None and manifest is not None:
        found = re.search(r"x(\d+)", str(manifest.fact("pcie")))
        widest = int(found.group(1)) if found else None
    now = f"x{card.pcie_width}" + (f" Gen{card.pcie_gen}" if card.pcie_gen else "")
    if widest and card.pcie_width < widest / 2:
        return failed(
            f"{card.label}: the PCIe link runs at {now}, the card has x{widest}",
            "Reseat the card, use the x16 slot that the CPU drives, replace the riser.",
            width=card.pcie_width,
        )
    if widest and card.pcie_width < widest:
        return passed(
            f"the PCIe link runs at {now} of x{widest}: loading is slower, training hardly", width=card.pcie_width
        )
    return passed(f"the PCIe link runs at {now}", width=card.pcie_width)


def judge_clocks(card: Card) -> Outcome:
    """Clocks, power limit and persistence."""
    told = []
    if card.clock_mhz is not None:
        told.append(
            f"SM clock {card.clock_mhz:.0f}" + (f" of {card.clock_max_mhz:.0f} MHz" if card.clock_max_mhz else " MHz")
        )
    if card.power_limit_w is not None:
        told.append(f"power limit {card.power_limit_w:.0f} W")
    if card.persistence is not None:
        told.append("persistence " + ("on" if card.persistence else "off: the first call of every program is slower"))
    if card.throttle:
        told.append("slowed down by " + ", ".join(card.throttle))
    if not told:
        return not_proven("clocks, power and persistence were not reported")
    evidence = {"power limit W": card.power_limit_w, "SM clock MHz": card.clock_mhz, "persistence": card.persistence}
    return passed("; ".join(told), **{key: value for key, value in evidence.items() if value is not None})


def judge_processes(card: Card, manifest: Manifest | None) -> Outcome:
    """Other programs on the card, its compute mode, and the memory that is left."""
    mode = card.compute_mode.lower()
    if "prohibited" in mode:
        return failed(f"{card.label}: compute mode is {card.compute_mode}", "`nvidia-smi -i INDEX -c DEFAULT`.")
    others = ", ".join(card.processes)
    if "exclusive" in mode and card.processes:
        return failed(
            f"{card.label}: compute mode {card.compute_mode}, and {others} holds the card",
            "Stop it, or `nvidia-smi -i INDEX -c DEFAULT`.",
        )
    if card.memory_used_mib is None and not card.processes:
        return not_proven("processes on the card were not reported")
    total = card.memory_mib or (float(manifest.fact("memory_mib")) if manifest else None)
    used = card.memory_used_mib or 0.0
    if total and used > total / 10:
        return failed(
            f"{card.label}: {used:.0f} of {total:.0f} MiB are taken" + (f" by {others}" if others else ""),
            "Stop what uses the card (nvidia-smi shows it), or choose another with --gpu.",
            **{"used MiB": used},
        )
    return passed(f"processes on the card: {others or 'none'}, {used:.0f} MiB used", **{"used MiB": used})
