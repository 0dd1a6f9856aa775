"""The real verl.trainer.main_ppo under Ray, with the HF rollout, for as many steps as asked."""

from __future__ import annotations

from envbuilder.smoke.check import Need, Outcome, Spec, failed
from envbuilder.smoke.context import Context


def run(context: Context) -> Outcome:
    """Not there yet."""
    return failed("not written")


TRAINER = Spec(
    "trainer",
    "verl.trainer.main_ppo",
    "the whole trainer runs: Ray, FSDP, HF rollout, every step of PPO",
    run,
    limit_s=7200,
    needs=frozenset({Need.TRAINER}),
)
