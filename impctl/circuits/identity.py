"""What a circuit and a query's template are called, so that state is taken up by its own kind.

Law: a name changes whenever the engine would read older state differently, or another release
would read the query otherwise.
Out of scope: keeping the names (`app.capturing.meta`).
"""

from __future__ import annotations

from impctl.plan.answer_lineage import for_all
from impctl.plan.fingerprint import fingerprint, template
from impctl.plan.nodes import Plan
from impctl.version import stamped

ENGINE_FORMAT = 7
"""Goes up whenever the engine would read older state differently."""


def circuit_id(core: Plan) -> str:
    """Names the circuit that a plan compiles to, under this engine."""
    return f"{ENGINE_FORMAT}:{fingerprint(core)}"


def with_answer(circuit: str) -> str:
    """The name of a plan's circuit that keeps the rows too."""
    return f"{circuit}:answer"


def template_id(root: Plan) -> str:
    """Names the template of a plan, as this release of impctl reads and rewrites queries.

    Which lineage a sketch is to hold is no part of it.
    """
    return stamped(template(for_all(root)))
