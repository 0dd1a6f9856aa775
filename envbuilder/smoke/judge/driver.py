"""The driver, its kernel module and its devices: is there one, does it know the card, is it new enough?"""

from __future__ import annotations

import re

from envbuilder.smoke.check import Outcome, failed, not_proven, passed
from envbuilder.smoke.facts import Card, HostFacts
from envbuilder.smoke.judge.tables import architecture, capability, dotted, driver_floor, tables, version


def judge_driver(facts: HostFacts, card: Card | None, minimum: str | None) -> Outcome:
    """The driver against the card's last branch and CUDA's floor. ``minimum`` is the stack's own floor."""
    error = facts.nvml_error
    if re.search(r"driver/library version mismatch", error, re.I):
        loaded = f"the loaded module is {facts.driver_module}, " if facts.driver_module else ""
        return failed(
            f"driver/library version mismatch: {loaded}the libraries are {facts.driver or 'of another version'}; "
            "the driver was updated and the old module is still loaded",
            "Reboot, or unload and load the nvidia modules; then hold the driver packages. The image is not at fault.",
        )
    if facts.driver and facts.driver_module and version(facts.driver) != version(facts.driver_module):
        return failed(
            f"the kernel module is {facts.driver_module}, the driver's libraries are {facts.driver}",
            "Reboot so that both are of one version; remove a cuda-compat package if one is installed.",
        )
    if facts.no_driver:
        return failed(
            "no NVIDIA driver is loaded on this host",
            f"Install a driver of {_branches(card)}, reboot, and check with nvidia-smi.",
        )
    for found in (_dropped_by_log(facts), _open_modules(facts, card), _no_room(facts)):
        if found:
            return found
    if not facts.driver:
        if error:
            return failed(f"the driver does not answer: {error}", "Run nvidia-smi and dmesg | grep NVRM on the host.")
        return not_proven("the host reported no driver version")
    last = _last_branch(card)
    branch = version(facts.driver)[0]
    if last and branch > last:
        name = card.name if card else "the card"
        return failed(
            f"driver {facts.driver} is too new for {name}: {last} is the last branch that knows it",
            f"Go back to branch {last} (proprietary modules) and hold the package. A newer driver never helps here.",
            driver=facts.driver,
        )
    torch_cuda = _cuda_of(facts)
    floors = [floor for floor in (minimum, driver_floor(torch_cuda) if torch_cuda else None) if floor]
    floor = max(floors, key=version, default=None)
    if floor is None:
        return passed(f"driver {facts.driver}", driver=facts.driver)
    if version(facts.driver) < version(floor):
        lower = " A stack on CUDA 11.8 needs only 450.80.02." if version(facts.driver) >= (450, 80, 2) else ""
        return failed(
            f"driver {facts.driver} is too old: CUDA {torch_cuda or 'of this stack'} needs {floor} or newer",
            f"Install a driver from {floor} to branch {last or 580}.{lower}",
            driver=facts.driver,
            needed=floor,
        )
    return passed(f"driver {facts.driver}, at least {floor} is needed", driver=facts.driver, needed=floor)


def judge_devices(facts: HostFacts) -> Outcome:
    """What a container needs beside the driver: the NVIDIA runtime and the device files, nvidia-uvm among them."""
    text = facts.runtime_error
    if facts.runtime is False or re.search(r"could not select device driver|unknown runtime", text, re.I):
        return failed(
            "the engine has no NVIDIA runtime" + (f": {text}" if text else ""),
            "Install nvidia-container-toolkit on the host, run `nvidia-ctk runtime configure`, restart the engine "
            "(or `nvidia-ctk cdi generate` for an engine that uses CDI). The image needs no change.",
        )
    if text:
        return failed(f"the engine could not give the container a GPU: {text}", "See the engine's log on the host.")
    if facts.kernel_ok:
        return passed("a kernel ran, so CUDA has what it needs", devices=sorted(facts.devices))
    uvm = [name for name in facts.devices if name.endswith("nvidia-uvm")]
    seen_by_torch = facts.torch.error if facts.torch else ""
    if any(not facts.devices[name] for name in uvm) or (
        facts.devices and not uvm and any("nvidia" in name for name in facts.devices)
    ):
        return failed(
            "/dev/nvidia-uvm is missing: nvidia-smi works without it, CUDA does not",
            "On the host: `modprobe nvidia_uvm`, then `nvidia-modprobe -c0 -u`; start the container anew.",
        )
    missing = sorted(name for name, there in facts.devices.items() if not there)
    if missing:
        return failed(f"device files are missing: {', '.join(missing)}", "Start the container with the NVIDIA runtime.")
    if re.search(r"setting the available devices to be zero|CUDA unknown error", seen_by_torch, re.I):
        return failed(
            f"CUDA does not start although the driver answers: {seen_by_torch}",
            "Most often nvidia_uvm is not loaded or /dev/nvidia-uvm is not in the container: "
            "`modprobe nvidia_uvm`, `nvidia-modprobe -c0 -u` on the host.",
        )
    if not facts.devices and facts.runtime is None:
        return not_proven("the host reported neither device files nor the engine's runtime")
    return passed("the NVIDIA runtime and the device files are there", devices=sorted(facts.devices))


def _cuda_of(facts: HostFacts) -> str:
    """The CUDA release of torch: what it says, else what the tag of its version says (cu124 is 12.4)."""
    if facts.torch is None or facts.torch.cuda:
        return facts.torch.cuda if facts.torch else ""
    tag = re.search(r"\+cu(\d+)(\d)$", facts.torch.version)
    return f"{tag.group(1)}.{tag.group(2)}" if tag else ""


def _last_branch(card: Card | None) -> int | None:
    row = architecture(card.cc) if card and card.cc else None
    last: int | None = row["last_branch"] if row else None
    return last


def _branches(card: Card | None) -> str:
    last = _last_branch(card)
    return f"branch {last or 580} or older" + ("" if last else " (580 is the last that knows Pascal)")


def _dropped_by_log(facts: HostFacts) -> Outcome | None:
    for line in facts.log:
        if re.search(r"legacy drivers?|is (?:not supported|supported through).*NVIDIA.*legacy", line, re.I):
            return failed(
                f"driver {facts.driver} ignores the card: {line.strip()}",
                "Go back to branch 580, the last with Maxwell, Pascal and Volta; never update beyond it.",
            )
    return None


def _open_modules(facts: HostFacts, card: Card | None) -> Outcome | None:
    least = capability(tables()["open_modules"]["value"])
    said = next((line for line in facts.log if re.search(r"not supported by open|open nvidia\.ko", line, re.I)), "")
    old = card is not None and card.cc is not None and card.cc < least
    if said or (facts.driver_open and old):
        why = said.strip() or f"the open kernel modules need capability {dotted(least)}"
        return failed(
            f"the open kernel modules are installed, which do not drive this card: {why}",
            "Install the proprietary modules of the same branch and reboot.",
        )
    return None


def _no_room(facts: HostFacts) -> Outcome | None:
    for line in facts.log:
        if re.search(r"BAR\d? .*(?:is 0M|invalid)|can't assign; no space|I/O region .* is invalid", line, re.I):
            return failed(
                f"the firmware cannot map the card's memory: {line.strip()}",
                "Switch on Above 4G Decoding (and switch CSM off) in the firmware; a board without it cannot hold "
                "this card. The driver is not at fault.",
            )
    return None


def judge_kernel(facts: HostFacts) -> Outcome:
    """Whether a kernel really ran: that torch.cuda.is_available() is True proves nothing."""
    if facts.kernel_ok is None:
        return not_proven("no kernel was launched")
    if facts.kernel_ok:
        return passed("a kernel ran on the card")
    error = facts.kernel_error or "no reason given"
    if re.search(r"no ?kernel ?image", error, re.I):
        return failed(
            f"a kernel does not start ({error}): the build holds no code for the card, whatever is_available() says",
            "Use a build of torch whose arch list holds the card.",
        )
    return failed(f"a kernel does not run: {error}", "Run with CUDA_LAUNCH_BLOCKING=1 to see which one.")
