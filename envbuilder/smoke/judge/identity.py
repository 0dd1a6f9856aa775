"""Which card is it: present, the one that was asked for, the one the stack is for, in which order?"""

from __future__ import annotations

import re

from envbuilder.smoke.check import Outcome, failed, not_proven, passed, unknown
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judge.tables import dotted
from envbuilder.smoke.manifest import Manifest


def judge_present(facts: HostFacts) -> Outcome:
    """Whether the driver shows any GPU."""
    none = re.search(r"no devices? (?:were |was )?found|no NVIDIA GPU", facts.nvml_error, re.I)
    if facts.cards == () or none:
        return failed(
            "the driver shows no GPU" + (f": {facts.nvml_error}" if facts.nvml_error else ""),
            "See `lspci | grep -i nvidia` and `dmesg | grep NVRM` on the host: a driver newer than branch 580 and the "
            "open kernel modules ignore Pascal, and firmware without Above 4G Decoding cannot map a P40.",
        )
    lost = re.search(r"unable to determine the device handle|GPU is lost|fallen off the bus", facts.nvml_error, re.I)
    if lost:
        return failed(
            f"a GPU is lost: {facts.nvml_error}",
            "Hardware: see the kernel log for Xid 79 and PCIe errors, check cooling, power and the seat of the card.",
        )
    if facts.cards is None:
        return not_proven("the host did not report its cards")
    return passed(f"{len(facts.cards)} card(s): {', '.join(card.label for card in facts.cards)}")


def judge_visible(facts: HostFacts, card: Card) -> Outcome:
    """Whether CUDA sees what the driver sees, MIG included."""
    torch = facts.torch
    visible = facts.env.get("CUDA_VISIBLE_DEVICES")
    if card.mig or (visible or "").startswith("MIG-"):
        counted = ""
        if torch and torch.device_count == 0 and torch.alloc_ok:
            counted = f" torch {torch.version} counts 0 devices and yet allocates: its count is wrong (pytorch#95784)."
        return failed(
            f"{card.label} is in MIG mode: a process sees one MIG slice at a time, never the whole card.{counted}",
            "Prove the whole card with MIG off (`nvidia-smi -i INDEX -mig 0`), or give one slice by its UUID in "
            "CUDA_VISIBLE_DEVICES to a torch newer than 1.13 and read the result as that slice's.",
        )
    if torch is None or (torch.device_count is None and torch.is_available is None):
        return not_proven("torch did not say which devices it sees")
    if (torch.device_count == 0 or torch.is_available is False) and not torch.alloc_ok:
        if visible is not None and visible.strip() in ("", "-1", "none", "void", "NoDevFiles"):
            why, cure = f"CUDA_VISIBLE_DEVICES={visible!r} hides every card", "Unset it."
        elif torch.version and not torch.cuda and torch.is_available is False and "+cpu" in torch.version:
            why, cure = f"torch {torch.version} is a build without CUDA", "Install a CUDA build."
        else:
            why = torch.error or "the driver answers, CUDA does not start"
            cure = "See the checks of the driver and the devices; `modprobe nvidia_uvm` if /dev/nvidia-uvm is missing."
        return failed(f"the driver shows {card.label}, torch sees no device: {why}", cure)
    if visible and facts.cards and not _names_a_card(visible, facts.cards):
        return failed(
            f"CUDA_VISIBLE_DEVICES={visible} names no card of this host", "Unset it, or give an index or UUID."
        )
    return passed(f"torch sees {torch.device_count if torch.device_count is not None else 'the'} device(s)")


def judge_card(card: Card, manifest: Manifest | None) -> Outcome:
    """The card against the stack's GPU profile: name and capability."""
    cc = dotted(card.cc) if card.cc else "not reported"
    evidence = {"card": card.name, "uuid": card.uuid, "pci": card.pci, "capability": cc}
    evidence = {key: value for key, value in evidence.items() if value}
    if manifest is None:
        return passed(f"{card.label}, compute capability {cc}", **evidence)
    wanted, title = dotted(manifest.capability), manifest.gpu["title"]
    if card.cc is None:
        return unknown(f"{card.label}: its compute capability is not known", "Report `cc` for the card.", **evidence)
    if card.cc != manifest.capability:
        return failed(
            f"{card.label} has compute capability {cc}; the stack is for {title}, {wanted}",
            f"Choose the {title} with --gpu (see nvidia-smi -L), or a stack for this card.",
            **evidence,
        )
    if card.name and card.name not in manifest.gpu["names"]:
        return passed(f"{card.label}: not a {title}, but the same capability {wanted}", **evidence)
    return passed(f"{card.label}, compute capability {cc}", **evidence)


def judge_order(facts: HostFacts, card: Card) -> Outcome:
    """nvidia-smi's order (PCI) against CUDA's: does an index mean the same card to both?"""
    if not facts.cuda or not facts.cards:
        if len(facts.cards or ()) == 1:
            return passed("one card: its index means the same to everyone")
        return not_proven("CUDA's own order of the cards was not reported")
    ours, theirs = [_key(c) for c in facts.cards], [_key(c) for c in facts.cuda]
    order = facts.env.get("CUDA_DEVICE_ORDER", "")
    said = f"{card.label} is the card under test; UUID {card.uuid or 'not reported'}"
    if set(theirs) <= set(ours) and theirs == [key for key in ours if key in theirs]:
        return passed(f"CUDA and nvidia-smi count alike ({said})", order=order or "not set")
    there = next((c.index for c in facts.cuda if _key(c) == _key(card)), None)
    at_index = facts.cuda[card.index].label if card.index < len(facts.cuda) else "no card"
    if order == "PCI_BUS_ID":
        return failed(
            f"two cards are swapped although CUDA_DEVICE_ORDER=PCI_BUS_ID: CUDA's device {card.index} is {at_index}, "
            f"nvidia-smi's is {card.label}",
            "Address the card by its UUID in CUDA_VISIBLE_DEVICES; reboot if the cards were moved.",
        )
    return passed(
        f"the orders differ: CUDA (fastest first) has {at_index} as its {card.index}, nvidia-smi has {card.label}. "
        f"--gpu counts as nvidia-smi does: CUDA_DEVICE_ORDER=PCI_BUS_ID and the card's UUID are set for the run",
        **{"UUID under test": card.uuid, "CUDA index": there},
    )


def judge_same_card(asked: Card, got: Card) -> Outcome:
    """Whether the device a run got is the card that was asked for. Both must bear a UUID to tell."""
    if not asked.uuid or not got.uuid:
        return not_proven("the UUID of the card is not known on both sides")
    if _uuid(asked.uuid) != _uuid(got.uuid):
        return failed(
            f"the run got another card: asked for {asked.label}, got {got.name} ({got.uuid})",
            "Address the card by its UUID; CUDA_DEVICE_ORDER=PCI_BUS_ID makes CUDA count as nvidia-smi does.",
        )
    return passed(f"the run has {asked.label}", uuid=asked.uuid)


def _key(card: Card) -> str:
    return _uuid(card.uuid) if card.uuid else card.name


def _uuid(text: str) -> str:
    return text.removeprefix("GPU-").lower()


def _names_a_card(visible: str, cards: tuple[Card, ...]) -> bool:
    """Whether the first of CUDA_VISIBLE_DEVICES is one of ``cards``, which may be one of several by its own index."""
    first = visible.split(",")[0].strip()
    if first.lstrip("-").isdigit():
        return 0 <= int(first) < len(cards) or int(first) in {card.index for card in cards}
    return any(card.uuid.startswith(first) for card in cards if card.uuid) or not any(card.uuid for card in cards)
