"""HF generate with a key-value cache, against the same model without one."""

from __future__ import annotations

from envbuilder.smoke.check import Outcome, Spec, failed, passed
from envbuilder.smoke.checks.guard import told
from envbuilder.smoke.context import Context

_NEW = 12


def run(context: Context) -> Outcome:
    """Greedy generation of a toy model must equal taking the likeliest token step by step without a cache."""
    import torch
    from transformers import AutoModelForCausalLM

    import envbuilder.smoke.external_lib  # noqa: F401
    from envbuilder.smoke.guard import Guard
    from envbuilder.smoke.shapes import TOY, config

    torch.manual_seed(5)
    with Guard(dict(context.manifest.gpu)) as guard:
        model = AutoModelForCausalLM.from_config(config(TOY, context.manifest.stack["compute"]["attention"]))
        model = model.to(context.device).eval()
        ids = torch.randint(3, TOY.vocab_size, (2, 16), generator=torch.Generator().manual_seed(5)).to(context.device)
        times: dict[str, float] = {}
        with torch.no_grad():
            with context.timed(times, "generate"):
                got = model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=_NEW, do_sample=False, eos_token_id=None,
                    pad_token_id=0,
                )  # fmt: skip
            reference = ids
            for _ in range(_NEW):
                token = model(reference, use_cache=False).logits[:, -1].argmax(-1, keepdim=True)
                reference = torch.cat([reference, token], dim=1)
    if (fault := told(guard.findings)) is not None:
        return fault
    if not torch.equal(got, reference):
        wrong = int((got != reference).sum())
        return failed(
            f"{wrong} of {got.numel()} tokens differ from the reference without a cache", "Report it with the JSON."
        )
    return passed(
        f"{_NEW} tokens for 2 prompts equal the reference", **{"ms a token": round(times["generate"] / _NEW * 1e3, 1)}
    )


GENERATE = Spec(
    "generate", "HF generate", "transformers' generation with its cache is right, in float32", run, limit_s=120
)
