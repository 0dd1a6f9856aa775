"""Is a model folder complete and right for the card? Asked before any GPU is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from envbuilder.errors import InputError, Place
from envbuilder.files import sha256_of
from envbuilder.report import Confidence, Finding, Report, Severity, Verdict
from envbuilder.stack.gpu import GpuProfile
from envbuilder.train.known_models import KnownModel
from envbuilder.train.lengths import PromptTokenizer
from envbuilder.train.safetensors_header import Tensor, read_header

_FLOAT_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


def check_model(folder: Path, gpu: GpuProfile, pins: KnownModel | None = None) -> Report:
    """Config, shards, tokenizer, chat template and dtype of ``folder``; with ``pins`` also every digest."""
    if not folder.is_dir():
        raise InputError("there is no such folder", place=Place(str(folder)), cure="Give the model's folder.")
    findings: list[Finding] = []
    config = _config(folder, findings)
    tensors = _tensors(folder, findings)
    _tokenizer(folder, config, findings)
    if tensors:
        _dtype(folder, tensors, gpu, findings)
        _shapes(folder, config, tensors, findings)
    if pins:
        _digests(folder, pins, findings)
    faults = [f for f in findings if f.severity is Severity.ERROR]
    parameters = sum(t.elements for t in tensors)
    facts = {"parameters": parameters, "tensors": len(tensors), "architectures": config.get("architectures", [])}
    if faults:
        summary = f"{len(faults)} fault{'s' if len(faults) != 1 else ''}: training would stop at the first"
        return Report("model check", str(folder), Verdict.NO, summary, tuple(findings), facts=facts)
    name = (config.get("architectures") or ["model"])[0]
    pinned = f", every byte that of {pins.repository}@{pins.revision[:12]}" if pins else ""
    summary = f"{name} with {parameters / 1e6:.0f} M parameters is complete{pinned}"
    return Report("model check", str(folder), Verdict.YES, summary, tuple(findings), facts=facts)


def _fault(rule: str, title: str, place: Place, cause: str, cure: str) -> Finding:
    return Finding(rule, Severity.ERROR, title, place, cause, cure, confidence=Confidence.MEASURED)


def _config(folder: Path, findings: list[Finding]) -> dict[str, Any]:
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(config, dict):
            return config
        raise ValueError("not an object")
    except FileNotFoundError:
        cause, cure = "transformers finds the model class there", "Fetch config.json of the same revision."
        findings.append(_fault("model-config-missing", "config.json is missing", Place(str(path)), cause, cure))
    except (OSError, ValueError, RecursionError) as error:
        findings.append(
            _fault("model-config-broken", "config.json cannot be read", Place(str(path)), str(error), "Fetch it again.")
        )
    return {}


def _tensors(folder: Path, findings: list[Finding]) -> list[Tensor]:
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            cause = f"it maps no weights: {error}"
            findings.append(
                _fault("model-index-broken", "the shard index is broken", Place(str(index)), cause, "Fetch it again.")
            )
            return []
    tensors: list[Tensor] = []
    for name in names:
        path = folder / Path(name).name
        if not path.is_file():
            pickled = (folder / "pytorch_model.bin").is_file()
            cause = (
                "only pytorch_model.bin is there, which runs code when loaded"
                if pickled
                else "the download is incomplete"
            )
            findings.append(_fault("model-shard-missing", f"{name} is missing", Place(str(path)), cause, "Fetch it."))
            continue
        try:
            tensors += read_header(path)
        except InputError as error:
            findings.append(
                _fault(
                    "model-shard-broken",
                    error.message,
                    Place(str(path)),
                    "the file is not whole",
                    error.cure or "Fetch it again.",
                )
            )
    return tensors


def _tokenizer(folder: Path, config: dict[str, Any], findings: list[Finding]) -> None:
    try:
        tokenizer = PromptTokenizer(folder)
        tokenizer.lengths([[{"role": "user", "content": "1+1"}]])
    except InputError as error:
        place = error.place or Place(str(folder))
        findings.append(
            _fault("model-tokenizer", error.message, place, "verl needs it for every prompt", error.cure or "Fetch it.")
        )
        return
    size, limit = tokenizer.vocabulary_size, config.get("vocab_size")
    if isinstance(limit, int) and size > limit:
        findings.append(
            _fault(
                "model-vocabulary",
                f"the tokenizer knows {size} tokens, the model {limit}",
                Place(str(folder / "tokenizer.json")),
                "tokenizer and model are of different revisions",
                "Fetch both from one revision.",
            )
        )


def _dtype(folder: Path, tensors: list[Tensor], gpu: GpuProfile, findings: list[Finding]) -> None:
    kinds = {t.dtype for t in tensors}
    for kind in sorted(kinds & set(_FLOAT_NAMES)):
        dtype = gpu.dtypes.get(_FLOAT_NAMES[kind])
        if dtype and dtype.native and dtype.usable:
            continue
        gib = sum(t.elements for t in tensors) * 4 / 2**30
        findings.append(
            Finding(
                "model-dtype",
                Severity.ADVICE,
                f"the weights are stored in {_FLOAT_NAMES[kind]}, which {gpu.title} does not compute in",
                Place(str(folder)),
                cause=dtype.source if dtype else "the card has no such type",
                cure=f"Nothing to convert: they are loaded as float32 ({gib:.2f} GiB); the stack's overrides say so.",
                confidence=Confidence.SOURCED,
            )
        )


def _shapes(folder: Path, config: dict[str, Any], tensors: list[Tensor], findings: list[Finding]) -> None:
    embed = next((t for t in tensors if t.name.endswith("embed_tokens.weight")), None)
    wanted = (config.get("vocab_size"), config.get("hidden_size"))
    if embed and None not in wanted and embed.shape != wanted:
        findings.append(
            _fault(
                "model-shape",
                f"the embedding is {embed.shape}, config.json says {wanted}",
                Place(str(folder / "config.json")),
                "config and weights are of different models or revisions",
                "Fetch both from one revision.",
            )
        )


def _digests(folder: Path, pins: KnownModel, findings: list[Finding]) -> None:
    for file in pins.file:
        path = folder / file.path
        if not path.is_file():
            findings.append(
                _fault(
                    "model-file-missing",
                    f"{file.path} is missing",
                    Place(str(path)),
                    "it belongs to the pin",
                    "Fetch it.",
                )
            )
        elif path.stat().st_size != file.size or sha256_of(path) != file.sha256:
            cause = f"its bytes are not those of {pins.repository}@{pins.revision[:12]}"
            findings.append(
                _fault("model-digest", f"{file.path} differs from the pin", Place(str(path)), cause, "Fetch it again.")
            )
