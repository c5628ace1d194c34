"""What a circuit and a query's template are called, so that state is taken up by its own kind.

Law: a name changes whenever the engine would read older state differently, or another release
would read the query otherwise. The names inside state (of counters, runs and their columns) belong
to the format: one that changes makes a new format, and state of the old one is `state_corrupt`.
Out of scope: keeping the names (`app.capturing.meta`).
"""

from __future__ import annotations

from impctl.engine.accumulators import FUNCTIONS as SPREADS
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.lineage import for_all
from impctl.plan.nodes import Aggregate, Plan, nodes_of
from impctl.version import stamped

ENGINE_FORMAT = 6
"""Goes up whenever the engine would read older state differently."""
_SPREAD_FORMAT = 7
"""The same of plans with variances: their squares are summed with residues."""


def circuit_id(core: Plan) -> str:
    """Names the circuit that a plan compiles to, under this engine."""
    calls = (
        output.call.function
        for node in nodes_of(core)
        if isinstance(node, Aggregate)
        for output in node.aggregates
    )
    is_spread = any(function in SPREADS for function in calls)
    return f"{_SPREAD_FORMAT if is_spread else ENGINE_FORMAT}:{fingerprint(core)}"


def with_answer(circuit: str) -> str:
    """The name of a plan's circuit that keeps the rows too."""
    return f"{circuit}:answer"


def template_id(root: Plan) -> str:
    """Names the template of a plan, as this release of impctl reads and rewrites queries.

    Which lineage a sketch is to hold is no part of it.
    """
    return stamped(template(for_all(root)))
