"""The judged checks as checks of the suite: over what NVML said on the host and what torch says in here."""

from __future__ import annotations

from dataclasses import replace

from envbuilder.smoke.check import Need, Outcome, Spec, not_proven
from envbuilder.smoke.context import Context
from envbuilder.smoke.facts import Card
from envbuilder.smoke.judge.identity import judge_same_card
from envbuilder.smoke.judged import JUDGED, Case, Judged

# These two say something of the binaries alone, so a machine without a card can make them.
_WITHOUT_GPU = {"arch", "cudnn"}


def _run(judged: Judged, context: Context) -> Outcome:
    from envbuilder.smoke.live import complete

    if context.facts.torch is None:
        context.facts = complete(context.facts, context.on_gpu)
    facts = context.facts
    if not context.on_gpu:
        # The card the stack is for stands in: its capability is a fact of the profile.
        card = Card(index=0, name=context.manifest.gpu["title"], cc=context.manifest.capability)
    elif not facts.cards:
        return not_proven("no card was reported")
    else:
        card = facts.cards[0]
        if len(facts.cuda) == 1 and judged.id == "order" and card.uuid:
            return judge_same_card(card, facts.cuda[0])
        if card.cc is None and facts.cuda:
            card = replace(card, cc=facts.cuda[0].cc)
    return judged.judge(Case(facts, card, context.manifest))


def _spec(judged: Judged) -> Spec:
    return Spec(
        judged.id,
        judged.title,
        judged.proves,
        lambda context: _run(judged, context),
        needs=frozenset() if judged.id in _WITHOUT_GPU else frozenset({Need.GPU}),
    )


HOST: tuple[Spec, ...] = tuple(_spec(judged) for judged in JUDGED)
