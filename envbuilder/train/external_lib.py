"""The module that verl imports in every worker of a training run: the adaptation to the card, our rollout, our step.

``actor_rollout_ref.model.external_lib=envbuilder.train.external_lib`` and the same for the critic.
"""

from __future__ import annotations

import envbuilder.smoke.external_lib  # noqa: F401  # adapts the process to the stack; must come before verl is used
from envbuilder.train.rollout import verl_rollout
from envbuilder.train.step import actor, wrapping

verl_rollout.install()
actor.install()
wrapping.install()
