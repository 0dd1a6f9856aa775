"""The binaries against the card: arch list, bfloat16, and which cuDNN torch really loads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from envbuilder.smoke.check import Outcome, failed, not_proven, passed, unknown
from envbuilder.smoke.facts import Card, HostFacts, Torch
from envbuilder.smoke.judge.tables import Capability, capability, dotted, tables


def runs(arch_list: Sequence[str], cc: Capability) -> str | None:
    """The entry of torch's arch list that runs on ``cc``: SASS of its major up to its minor, else PTX up to it."""
    best: tuple[Capability, str] | None = None
    for entry in arch_list:
        found = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", entry)
        if not found:
            continue
        pair = int(found.group(2)), int(found.group(3))
        if found.group(4) and pair != cc:
            continue  # code of an "a" target runs on that capability alone
        sass = found.group(1) == "sm" and pair[0] == cc[0] and pair[1] <= cc[1]
        ptx = found.group(1) == "compute" and pair <= cc
        if (sass or ptx) and (best is None or pair >= best[0]):
            best = pair, entry
    return best[1] if best else None


def judge_arch(facts: HostFacts, card: Card, builds: Mapping[str, Sequence[str]]) -> Outcome:
    """torch's arch list against the card. ``builds``: torch builds known to hold code for a capability."""
    torch = facts.torch
    if torch is None or not torch.arch_list:
        return not_proven("torch's arch list was not reported")
    if card.cc is None:
        return unknown(
            f"{card.label}: its compute capability is not known, so the arch list decides nothing",
            "Report `cc` for the card.",
            arch_list=" ".join(torch.arch_list),
        )
    entry, cc = runs(torch.arch_list, card.cc), dotted(card.cc)
    listed = " ".join(torch.arch_list)
    if entry:
        how = f"code for {entry} runs on {cc}" if entry != f"sm_{cc.replace('.', '')}" else f"it holds {entry} itself"
        return passed(f"torch {torch.version}: {how} ({card.label})", arch_list=listed, runs=entry)
    wanted = " or ".join(f"sm_{card.cc[0]}{minor}" for minor in range(card.cc[1] + 1))
    known = builds.get(cc, ())
    cure = f"Install a build whose list holds {wanted}"
    return failed(
        f"torch {torch.version} holds no kernel for {card.label}, compute capability {cc}: it was built for {listed}; "
        f"the card needs {wanted}",
        cure + (f": {', '.join(known)}." if known else "."),
        arch_list=listed,
        capability=cc,
    )


def judge_bf16(facts: HostFacts, card: Card) -> Outcome:
    """bfloat16 from the capability, never from torch.cuda.is_bf16_supported(), which counts emulation."""
    if card.cc is None:
        return not_proven("the card's compute capability is not known")
    least = capability(tables()["bf16_native"]["value"])
    says = facts.torch.is_bf16_supported if facts.torch else None
    if card.cc >= least:
        return passed(f"bf16 is native on {dotted(card.cc)} (from {dotted(least)} on)", bf16="native")
    aside = "; torch.cuda.is_bf16_supported() says True because it counts emulation" if says else ""
    return passed(
        f"bf16 is emulated (slow): {card.label} has {dotted(card.cc)}, native bf16 needs {dotted(least)}{aside}. "
        "Compute in float32",
        bf16="emulated (slow)",
    )


def cudnn_text(number: int) -> str:
    """90100 as ``9.1.0``, 8907 as ``8.9.7``."""
    base = 10000 if number >= 90000 else 1000
    return f"{number // base}.{number % base // 100}.{number % 100}"


def judge_cudnn(facts: HostFacts) -> Outcome:
    """Which cuDNN torch loads. The system's copy is another fact, and serves only code built against it."""
    torch = facts.torch
    error = torch.error if torch else ""
    missing = re.search(
        r"libcudnn[\w.]*(?=: cannot open|.*No such file| not found)|Could not load library (\S*cudnn\S*)", error
    )
    if missing:
        return failed(
            f"torch finds no cuDNN: {error}",
            "torch loads the cuDNN of its own wheel dependency: install the torch wheel with its dependencies anew. "
            "Another CUDA release or a system cuDNN does not help.",
        )
    clash = re.search(r"compiled against (?:\(?([\d, .]+)\)?).*?found.*?\(?([\d, .]+)\)?", error)
    if clash and "cudnn" in error.lower():
        return failed(
            f"torch meets another cuDNN than its own: {error}",
            "Take the folder that holds it out of LD_LIBRARY_PATH "
            + f"({facts.env.get('LD_LIBRARY_PATH', 'not reported')}): "
            + tables()["torch_cudnn"]["path_order"]
            + ".",
        )
    system = ""
    if facts.system_cudnn:
        number = ".".join(facts.system_cudnn.split(".")[:3])
        system = (
            f"; the system's {number} ({facts.system_cudnn_path or 'path not reported'}) is another copy that "
            "torch does not use"
        )
    if torch is None or torch.cudnn is None:
        if torch is None:
            return not_proven(f"torch did not report its cuDNN{system}")
        if torch.cudnn_path == "" and not facts.system_cudnn:
            return not_proven("torch did not report its cuDNN")
        return failed(f"torch loads no cuDNN{system}", "Install the torch wheel with its dependencies anew.")
    shadowed = _shadowing(facts, torch)
    if shadowed:
        return failed(
            f"LD_LIBRARY_PATH puts {shadowed} before torch's own cuDNN {cudnn_text(torch.cudnn)}",
            f"Take it out of LD_LIBRARY_PATH: {tables()['torch_cudnn']['path_order']}.",
        )
    return passed(
        f"torch loads cuDNN {cudnn_text(torch.cudnn)}{_from(torch)}{system}",
        torch_cudnn=cudnn_text(torch.cudnn),
        **({"system_cudnn": facts.system_cudnn} if facts.system_cudnn else {}),
    )


def _from(torch: Torch) -> str:
    return f" from {torch.cudnn_path}" if torch.cudnn_path else ""


def _shadowing(facts: HostFacts, torch: Torch) -> str:
    """The entry of LD_LIBRARY_PATH that holds a cuDNN of torch's own major, which would then be loaded instead."""
    folder = facts.system_cudnn_path.rsplit("/", 1)[0]
    entries = [e.rstrip("/") for e in facts.env.get("LD_LIBRARY_PATH", "").split(":") if e]
    major = facts.system_cudnn.split(".")[0]
    same_major = torch.cudnn is not None and cudnn_text(torch.cudnn).split(".")[0] == major
    own = torch.cudnn_path.rsplit("/", 1)[0]
    return folder if facts.system_cudnn and same_major and folder in entries and folder != own else ""
