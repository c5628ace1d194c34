"""The rules, and the order in which they run.

Law: a rule is total, keeps the bag of rows a plan yields on every database, and never changes the
root's attributes (identities, names, order). Unsure means unchanged. The order is the review:
what asks for the best rows of a fixpoint is looked at first, while nobody has dropped it yet; steps
over single rows go next, as they hide what a condition stands on; what all sides of an OR ask for
comes out of it then, so that it can go down; selections go down next, so that the columns only they
read are known when columns are dropped; what is left of a filter on ranks then shows as a top-k;
averages are split last, because splitting adds columns.
Out of scope: reading SQL (`plan.sql.statement`), judging plans (`plan.safety.verdict`).
"""

from __future__ import annotations

from collections.abc import Callable

from impctl.plan.nodes import Plan, Project
from impctl.plan.rules.best_fixpoints import best_fixpoints
from impctl.plan.rules.common_parts import common_parts
from impctl.plan.rules.prune_columns import prune_columns
from impctl.plan.rules.push_selections import push_selections
from impctl.plan.rules.rank_limits import rank_limits
from impctl.plan.rules.single_rows import single_rows
from impctl.plan.rules.split_averages import split_averages

RULES: tuple[Callable[[Plan], Plan], ...] = (
    best_fixpoints,
    single_rows,
    common_parts,
    push_selections,
    rank_limits,
    prune_columns,
    split_averages,
)

_ROUNDS = 8
"""More than any plan has needed; a bound, so that two rules can never chase each other."""


def core_of(root: Plan) -> Plan:
    """The same rows without their columns, after the rules: all that a sketch depends on."""
    return apply_rules(Project(root, ()))


def apply_rules(root: Plan) -> Plan:
    """The plan after every rule, in order, again and again until nothing changes."""
    for _ in range(_ROUNDS):
        before = root
        for rule in RULES:
            root = rule(root)
        if root == before:
            break
    return root
