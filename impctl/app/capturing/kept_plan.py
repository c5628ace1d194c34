"""The plan by which a query's sketches are kept: whose lineage they hold.

Law: it yields the query's rows on every database, and its lineage suffices for the query's answer:
by default it is the query's own plan, where witnesses are asked for (`lineage: witness`) the one in
which what one row decides has that row's lineage only; where the answer's alone is (`lineage:
answer`), rows of recursions that it does not stem from have none. Engine, Spark and verification
keep sketches by the same one. Queries themselves never run by it.
Out of scope: where witnesses are enough (`rules.witnesses`), building the circuit
(`app.capturing.chosen_way`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from impctl.app.preparing.lineage_use import sketched_nodes
from impctl.app.preparing.prepared import PreparedQuery
from impctl.data.schema import Column
from impctl.plan.lineage import answer_notes
from impctl.plan.nodes import Fixpoint, Plan, Query, Witness, nodes_of
from impctl.rules.finalize import AnswerPlan
from impctl.rules.optimize import core_of
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import Verdict, carried
from impctl.sketch.partition import RangePartition
from impctl.types import AccessId
from impctl.values import dataclass
from impctl.workload.models import Lineage


@dataclass(frozen=True, slots=True)
class KeptPlan:
    """The query with the plan that is captured, the verdict on it, and its core (0008).

    `notes` say what the nodes of the query's own plan keep, by their position in it.
    """

    query: Query
    verdict: Verdict
    core: Plan
    notes: Mapping[int, str]

    def core_verdict(
        self, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
    ) -> Verdict:
        """The query's verdict as it holds of the core."""
        sketched = {access: partition.attribute for access, partition in partitions.items()}
        return carried(verdict, replace(self.query, root=self.core), sketched)

    @property
    def has_witnesses(self) -> bool:
        """Whether the lineage is a choice: another row may come to decide that did not change."""
        nodes = nodes_of(self.query.root)
        return any(isinstance(n, Witness) or (isinstance(n, Fixpoint) and n.chooses) for n in nodes)


def answer_verdict(
    prepared: PreparedQuery,
    answer: AnswerPlan,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
) -> Verdict:
    """The query's verdict as it holds of the plan whose rows are kept for the answer."""
    sketched = {access: partition.attribute for access, partition in partitions.items()}
    return carried(verdict, replace(prepared.planned, root=answer.kept), sketched)


def kept_plan(
    prepared: PreparedQuery, verdict: Verdict, partitions: Mapping[AccessId, RangePartition]
) -> KeptPlan:
    """The plan that sketches of these partitions are kept by, under the query's verdict."""
    if prepared.spec.lineage is Lineage.ALL:
        return KeptPlan(prepared.planned, verdict, prepared.core, {})
    if prepared.spec.lineage is Lineage.ANSWER:
        # Its plan says so by itself (`app.preparing.prepared`).
        sketched = {access: partition.attribute for access, partition in partitions.items()}
        barriers, _ = sketched_nodes(prepared, verdict, sketched)
        notes = answer_notes(prepared.root, barriers)
        return KeptPlan(prepared.planned, verdict, prepared.core, notes)
    columns = {a: Column(p.attribute, p.type) for a, p in partitions.items()}
    result = witnessed(prepared.planned, verdict, columns)
    sketched = {access: column.name for access, column in columns.items()}
    of_kept = carried(verdict, result.query, sketched)
    core = core_of(result.query.root)
    return KeptPlan(result.query, of_kept, core, result.notes)
