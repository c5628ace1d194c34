"""Random plans with a fixpoint of which the answer's lineage counts alone.

Law: as `fixpoint_plans`, with a filter right above most of them, so that rows are left out.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from impctl.plan.lineage import for_answer, is_open
from impctl.plan.nodes import Fixpoint, Plan, Select, inputs_of, nodes_of, with_inputs
from tests.plan.fixpoint_plans import FixpointMaker, make_fixpoint_trial
from tests.plan.trials import Trial


class _Narrower(FixpointMaker):
    def narrowed(self, plan: Plan) -> Plan:
        """The plan with a filter above its fixpoint, most often."""
        if not isinstance(plan, Fixpoint):
            return with_inputs(plan, tuple(map(self.narrowed, inputs_of(plan))))
        if self.rng.random() < 0.3:
            return plan
        return Select(plan, self._narrow(plan.attributes))


def make_answer_trial(seed: int) -> Trial:
    """A trial whose fixpoints are sketched for the answer alone."""
    trial = make_fixpoint_trial(seed)
    root = _Narrower(Random(f"answer {seed}")).narrowed(trial.root)
    return replace(trial, root=for_answer(root))


def is_for_answer(plan: Plan) -> bool:
    """Whether some fixpoint of the plan is."""
    return any(isinstance(node, Fixpoint) and is_open(node) for node in nodes_of(plan))
