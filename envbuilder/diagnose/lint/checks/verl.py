"""verl: keys that do not exist, settings that change nothing, settings the card cannot run."""

from __future__ import annotations

import re
from collections.abc import Iterator

from envbuilder.diagnose.lint.checking import lowest
from envbuilder.diagnose.lint.model import Hit, Override, Recipe
from envbuilder.stack.compat.verl_keys import VerlKeys, verl_keys, versions_with

DEFAULT_VERL = "0.5.0"
_OFF = ("false", "0", "no", "none", "null", "off")


def check(recipe: Recipe) -> Iterator[Hit]:
    """All checks of this module."""
    overrides = {o.key: o for o in recipe.overrides}
    if not overrides:
        return
    version = recipe.verl or DEFAULT_VERL
    table = verl_keys(version)
    if table is not None:
        for override in recipe.overrides:
            yield from _key(recipe, table, override)
    yield from _attention(version, overrides)
    yield from _dtypes(recipe, overrides)
    yield from _rollout(recipe, version, overrides)
    yield from _kernels(recipe, version, overrides)
    yield from _offload(recipe, overrides)
    yield from _numbers(overrides)
    yield from _data(overrides)
    yield from _micro_batches(recipe, overrides)
    yield from _visible(recipe, overrides)


def _shown(override: Override) -> str:
    return f"{override.prefix}{override.key}={override.value}" if override.prefix != "~" else f"~{override.key}"


def _key(recipe: Recipe, table: VerlKeys, override: Override) -> Iterator[Hit]:
    if "$" in override.key or "attn_implementation" in override.key:
        return
    near = table.near(override.key, override.entry)
    values = {
        "key": override.key,
        "version": table.version,
        "near": ", ".join(near),
        "last": override.key.rsplit(".", 1)[-1],
        "elsewhere": ", ".join(v for v in versions_with(override.key) if v != table.version),
    }
    if override.prefix in ("+", "++"):
        if not table.reads(override.key, override.entry):
            yield Hit("verl-override-changes-nothing", override.line, (_shown(override),), values)
        elif override.prefix == "+" and override.key in table.declared(override.entry):
            yield Hit("verl-plus-on-existing-key", override.line, (_shown(override),), values)
        return
    if table.knows(override.key, override.entry):
        return
    if recipe.kind == "verl-settings":
        if not table.reads(override.key, override.entry):
            yield Hit("verl-key-unknown-in-file", override.line, (f"{override.key}: {override.value}",), values)
    elif table.reads(override.key, override.entry):
        yield Hit("verl-key-needs-plus", override.line, (_shown(override),), values)
    else:
        yield Hit("verl-key-unknown", override.line, (_shown(override),), values)


def _attention(version: str, overrides: dict[str, Override]) -> Iterator[Hit]:
    """attn_implementation on a release whose workers hard-code flash_attention_2."""
    for key, override in overrides.items():
        if key.endswith("override_config.attn_implementation") and _older(version, (0, 6, 1)):
            yield Hit("verl-attention-override-unread", override.line, (_shown(override),), {"version": version})


def _older(version: str, than: tuple[int, ...]) -> bool:
    return tuple(int(p) for p in re.findall(r"\d+", version)[:3]) < than


def _dtypes(recipe: Recipe, overrides: dict[str, Override]) -> Iterator[Hit]:
    card = lowest(recipe)
    for key, override in overrides.items():
        last = key.rsplit(".", 1)[-1]
        if last not in ("dtype", "model_dtype", "param_dtype", "torch_dtype", "reduce_dtype", "buffer_dtype"):
            continue
        value = override.value.lower().removeprefix("torch.")
        values = {"key": key, "value": override.value, "card": card.title, "capability": card.capability}
        if value in ("bfloat16", "bf16") and card.major_minor < (8, 0):
            yield Hit("bf16-on-old-card", override.line, (_shown(override),), values)
        elif value in ("float16", "fp16", "half") and card.fp16_rate == "1/64":
            yield Hit("fp16-slow-on-card", override.line, (_shown(override),), values)


def _rollout(recipe: Recipe, version: str, overrides: dict[str, Override]) -> Iterator[Hit]:
    card = lowest(recipe)
    name = overrides.get("actor_rollout_ref.rollout.name")
    if name is None:
        return
    floors = {"vllm": (7, 0), "sglang": (7, 5), "vllm_v1": (7, 0)}
    floor = floors.get(name.value)
    if floor and card.major_minor < floor:
        yield Hit(
            "verl-rollout-needs-newer-card",
            name.line,
            (_shown(name),),
            {
                "name": name.value,
                "minimum": f"{floor[0]}.{floor[1]}",
                "card": card.title,
                "capability": card.capability,
            },
        )
    if name.value == "hf" and not _older(version, (0, 6, 0)):
        yield Hit("verl-hf-rollout-gone", name.line, (_shown(name),), {"version": version})
    if name.value == "hf":
        for key in (
            "gpu_memory_utilization",
            "enforce_eager",
            "free_cache_engine",
            "enable_chunked_prefill",
            "max_num_batched_tokens",
            "max_num_seqs",
        ):
            idle = overrides.get(f"actor_rollout_ref.rollout.{key}")
            if idle is not None:
                yield Hit("verl-vllm-key-under-hf", idle.line, (_shown(idle), _shown(name)), {"key": key})
                break


def _kernels(recipe: Recipe, version: str, overrides: dict[str, Override]) -> Iterator[Hit]:
    card = lowest(recipe)
    for key, override in overrides.items():
        if key.endswith("use_remove_padding") and override.value.lower() == "true" and card.major_minor < (8, 0):
            yield Hit(
                "verl-remove-padding-needs-flash-attn",
                override.line,
                (_shown(override),),
                {"key": key, "card": card.title, "capability": card.capability},
            )
        if key.endswith("use_torch_compile") and override.value.lower() == "true" and card.major_minor < (7, 0):
            yield Hit(
                "verl-torch-compile-on-old-card",
                override.line,
                (_shown(override),),
                {"card": card.title, "capability": card.capability},
            )
    started = recipe.kind == "script" and any("main_ppo" in " ".join(s.argv) for s in recipe.steps)
    compiles = overrides.get("actor_rollout_ref.actor.use_torch_compile")
    if (
        started
        and card.major_minor < (7, 0)
        and compiles is None
        and "TORCHDYNAMO_DISABLE" not in recipe.text
        and "TORCH_COMPILE_DISABLE" not in recipe.text
        and _whole(overrides)
    ):
        line = next(s.line for s in recipe.steps if "main_ppo" in " ".join(s.argv))
        yield Hit(
            "verl-torch-compile-on-old-card",
            line,
            ("actor_rollout_ref.actor.use_torch_compile is not set (default: True)",),
            {"card": card.title, "capability": card.capability},
        )


def _whole(overrides: dict[str, Override]) -> bool:
    """Whether the overrides look like all of a run, not an excerpt: data and model are set."""
    return any(k.startswith("data.train_files") for k in overrides) and "actor_rollout_ref.model.path" in overrides


def _is_on(override: Override | None) -> bool:
    return override is not None and override.value.lower() not in _OFF and override.value != ""


def _offload(recipe: Recipe, overrides: dict[str, Override]) -> Iterator[Hit]:
    fsdp = "actor_rollout_ref.actor.fsdp_config"
    strategy = overrides.get("actor_rollout_ref.actor.strategy")
    param, optim = overrides.get(f"{fsdp}.param_offload"), overrides.get(f"{fsdp}.optimizer_offload")
    policy = overrides.get(f"{fsdp}.offload_policy")
    if strategy and strategy.value == "fsdp2" and (_is_on(param) or _is_on(optim)) and not _is_on(policy):
        first = param if _is_on(param) else optim
        if first is not None:
            yield Hit("verl-fsdp2-offload-policy", first.line, (_shown(strategy), _shown(first)), {})
    save = overrides.get("trainer.save_freq")
    if save and re.fullmatch(r"[1-9]\d*", save.value) and _is_on(param) and _is_on(optim):
        yield from _save(recipe, save, overrides)


def _save(recipe: Recipe, save: Override, overrides: dict[str, Override]) -> Iterator[Hit]:
    """Host memory at the first checkpoint: offloaded weights and optimiser, plus what saving copies."""
    ram = re.search(r"(?:RAM|host memory|memory)\D{0,12}(\d+)\s*G", recipe.text, re.IGNORECASE)
    size = re.search(r"(?<![\w.])(\d+(?:\.\d+)?)\s?B\b", recipe.text)
    path = overrides.get("actor_rollout_ref.model.path")
    if size is None and path is not None:
        size = re.search(r"(\d+(?:\.\d+)?)[Bb]\b", path.value)
    if size is None:
        return
    billions = float(size.group(1))
    # Weights (4 B) and Adam's two moments (8 B) in float32 lie in host memory; saving gathers one more copy of each.
    offloaded = billions * 1e9 * 12 / (1 << 30)
    reference = (
        billions * 1e9 * 4 / (1 << 30)
        if _is_on(overrides.get("actor_rollout_ref.ref.fsdp_config.param_offload"))
        else 0.0
    )
    peak = offloaded * 2 + reference
    if ram is None or peak > float(ram.group(1)):
        if ram is None and billions < 3:
            return
        yield Hit(
            "verl-host-memory-at-save",
            save.line,
            (_shown(save),),
            {
                "model": f"{size.group(1)}B",
                "rest": f"{offloaded + reference:.0f}",
                "peak": f"{peak:.0f}",
                "ram": ram.group(1) if ram else "",
            },
        )


def _int(overrides: dict[str, Override], key: str, default: int | None = None) -> int | None:
    override = overrides.get(key)
    if override is None:
        return default
    return int(override.value) if re.fullmatch(r"\d+", override.value) else None


def _numbers(overrides: dict[str, Override]) -> Iterator[Hit]:
    batch, gpus = _int(overrides, "data.train_batch_size"), _int(overrides, "trainer.n_gpus_per_node")
    nodes, samples = _int(overrides, "trainer.nnodes", 1), _int(overrides, "actor_rollout_ref.rollout.n", 1)
    mini = _int(overrides, "actor_rollout_ref.actor.ppo_mini_batch_size")
    if batch and gpus and nodes and samples and (batch * samples) % (gpus * nodes):
        first = overrides["data.train_batch_size"]
        yield Hit(
            "verl-batch-indivisible",
            first.line,
            (_shown(first), _shown(overrides["trainer.n_gpus_per_node"])),
            {"batch": str(batch), "n": str(samples), "gpus": str(gpus * nodes)},
        )
    if batch and mini and mini > batch:
        first = overrides["actor_rollout_ref.actor.ppo_mini_batch_size"]
        yield Hit(
            "verl-mini-batch-too-large",
            first.line,
            (_shown(first), _shown(overrides["data.train_batch_size"])),
            {"mini": str(mini), "batch": str(batch)},
        )
    parallel = _int(overrides, "actor_rollout_ref.rollout.tensor_model_parallel_size")
    if parallel and gpus and nodes and parallel > gpus * nodes:
        first = overrides["actor_rollout_ref.rollout.tensor_model_parallel_size"]
        yield Hit(
            "verl-tensor-parallel-too-large",
            first.line,
            (_shown(first),),
            {"tp": str(parallel), "gpus": str(gpus * nodes)},
        )
    estimator = overrides.get("algorithm.adv_estimator")
    if estimator and estimator.value == "grpo" and "actor_rollout_ref.rollout.n" in overrides and samples == 1:
        first = overrides["actor_rollout_ref.rollout.n"]
        yield Hit("verl-grpo-with-one-sample", first.line, (_shown(estimator), _shown(first)))
    coefficient, in_reward = overrides.get("algorithm.kl_ctrl.kl_coef"), overrides.get("algorithm.use_kl_in_reward")
    if coefficient and not _is_on(in_reward):
        yield Hit("verl-kl-coef-unused", coefficient.line, (_shown(coefficient),))


_MICRO = {
    "actor_rollout_ref.actor": "ppo_micro_batch_size",
    "critic": "ppo_micro_batch_size",
    "actor_rollout_ref.rollout": "log_prob_micro_batch_size",
    "actor_rollout_ref.ref": "log_prob_micro_batch_size",
}


def _micro_batches(recipe: Recipe, overrides: dict[str, Override]) -> Iterator[Hit]:
    """The two forms of a micro batch size exclude each other, and one of them must be set."""
    for part, name in _MICRO.items():
        short, long = f"{part}.{name}", f"{part}.{name}_per_gpu"
        if short in overrides and long in overrides:
            first = overrides[short]
            yield Hit(
                "verl-micro-batch-twice",
                first.line,
                (_shown(first), _shown(overrides[long])),
                {"short": short, "long": long},
            )
    started = recipe.kind == "script" and _whole(overrides) and '"$@"' not in recipe.text
    dynamic = any(key.endswith("use_dynamic_bsz") and _is_on(value) for key, value in overrides.items())
    part, name = "actor_rollout_ref.actor", "ppo_micro_batch_size"
    given = any(key.endswith(("micro_batch_size", "micro_batch_size_per_gpu")) for key in overrides)
    mine = {f"{part}.{name}", f"{part}.{name}_per_gpu"} & set(overrides)
    if started and given and not dynamic and not mine:
        first = next(iter(overrides.values()))
        yield Hit("verl-micro-batch-missing", first.line, (), {"key": f"{part}.{name}_per_gpu"})


def _visible(recipe: Recipe, overrides: dict[str, Override]) -> Iterator[Hit]:
    """More GPUs asked for than CUDA_VISIBLE_DEVICES shows."""
    gpus, nodes = _int(overrides, "trainer.n_gpus_per_node"), _int(overrides, "trainer.nnodes", 1)
    shown = [v.value for v in recipe.env if v.name == "CUDA_VISIBLE_DEVICES"]
    shown += [s.env["CUDA_VISIBLE_DEVICES"] for s in recipe.steps if "CUDA_VISIBLE_DEVICES" in s.env]
    if not gpus or not shown or nodes != 1 or not re.fullmatch(r"[\d,\s]+", shown[-1]):
        return
    visible = len([part for part in shown[-1].split(",") if part.strip()])
    if gpus > visible:
        first = overrides["trainer.n_gpus_per_node"]
        yield Hit(
            "verl-more-gpus-than-visible",
            first.line,
            (f"CUDA_VISIBLE_DEVICES={shown[-1]}", _shown(first)),
            {"gpus": str(gpus), "visible": str(visible)},
        )


def _data(overrides: dict[str, Override]) -> Iterator[Hit]:
    for key in ("data.train_files", "data.val_files"):
        override = overrides.get(key)
        if override and re.search(r"\.(jsonl?|csv|txt)\b", override.value):
            yield Hit("verl-data-not-parquet", override.line, (_shown(override),), {"key": key})
    prompt = overrides.get("data.prompt_key")
    if prompt and prompt.value in ("question", "instruction", "text", "problem", "query"):
        yield Hit(
            "verl-raw-data",
            prompt.line,
            (_shown(prompt),),
            {"columns": prompt.value, "missing": "prompt, reward_model"},
        )


def check_source(recipe: Recipe) -> Iterator[Hit]:
    """verl from its repository without a commit."""
    for step in recipe.steps:
        for requirement in step.requirements:
            if re.search(r"github\.com/[\w-]+/verl(\.git)?(#|$)", requirement.url):
                yield Hit("verl-unpinned", requirement.line, (requirement.raw,))
        if step.tool == "git" and re.search(r"/verl(\.git)?$", step.options["url"][0]) and not step.options["branch"]:
            later = " ".join(s.text for s in recipe.steps if s.line >= step.line)
            if not re.search(r"git (-C \S+ )?(checkout|reset|switch)", later):
                yield Hit("verl-unpinned", step.line, (step.text.splitlines()[0],))


def check_schema(recipe: Recipe) -> Iterator[Hit]:
    """The columns of a data set against what verl reads."""
    data = recipe.data if isinstance(recipe.data, dict) else {}
    columns = data.get("columns")
    names = (
        list(columns) if isinstance(columns, dict) else [str(c) for c in columns] if isinstance(columns, list) else []
    )
    if not names:
        return
    missing = [name for name in ("data_source", "prompt", "reward_model") if name not in names]
    if missing:
        yield Hit(
            "verl-raw-data",
            recipe.line_of("columns"),
            (f"columns: {', '.join(names)}",),
            {"columns": ", ".join(names), "missing": ", ".join(missing)},
        )
        return
    kinds = columns if isinstance(columns, dict) else {}
    prompt = str(kinds.get("prompt", "")).lower()
    if prompt in ("string", "str", "large_string"):
        yield Hit("verl-prompt-not-messages", recipe.line_of("columns", "prompt"), (f"prompt: {kinds['prompt']}",))
    reward = kinds.get("reward_model")
    if (
        reward is not None
        and isinstance(reward, str)
        and reward.lower() in ("string", "str", "large_string", "double", "float")
    ):
        yield Hit(
            "verl-raw-data",
            recipe.line_of("columns", "reward_model"),
            (f"reward_model: {reward}",),
            {"columns": ", ".join(names), "missing": "reward_model.ground_truth"},
        )
