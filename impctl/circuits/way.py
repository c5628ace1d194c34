"""Which way a query's sketch can be maintained, and why.

Law: the best of exact, touch and recapture that is sound for the plan; the reason names the
operator or function that stands in the way of a better one, with its place in the SQL. Touch needs
a plan keyed on its one sketched access: then a change can only concern the fragments of the changed
rows themselves.
Out of scope: what a policy makes of it (`app.maintain`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from impctl.circuits.compile import Compiled, compile_plan
from impctl.circuits.flows import BlockedError
from impctl.circuits.refills import KEEP_ALL, Buffers
from impctl.circuits.strategy import Chooser, Strategy
from impctl.circuits.trees.built import PlannedBlock
from impctl.circuits.trees.choice import TreeChoice
from impctl.circuits.trees.shape import NoTree, TreeShape
from impctl.engine.fixpoint.absorption import Absorbs
from impctl.expr.nodes import Span
from impctl.plan.nodes import Plan, scans_of
from impctl.rules.finalize import AnswerPlan
from impctl.safety.judge import Verdict
from impctl.sketch.partition import RangePartition
from impctl.sketch.sketch import Mode
from impctl.types import AccessId, TableName
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """The mode, its reason, the place of what blocks a better one, and the circuit if exact.

    `accesses` are all of the query's with their tables, those too that the circuit does not read;
    `core` is the plan that the sketches are kept by, where it is not the query's own. `answer` is
    how the query's answer is made of the rows that the circuit keeps, where it is asked for and
    they are kept; `no_answer` says why not. `trees` is whether its joins were to be trees, where
    that was left open. `no_provenance` is why recursion is not kept by absorption, where that is
    asked for.
    """

    mode: Mode
    reason: str
    span: Span | None = None
    compiled: Compiled | None = None
    accesses: Mapping[AccessId, TableName] = field(default_factory=dict)
    core: Plan | None = None
    answer: AnswerPlan | None = None
    no_answer: str = ""
    trees: TreeChoice | None = None
    no_provenance: str = ""

    @property
    def provenance(self) -> str:
        """How functions of recursion are shipped; empty where none are kept."""
        absorbed = () if self.compiled is None else self.compiled.absorbed
        return str(absorbed[0].operator.absorbs.ship) if absorbed else ""

    @property
    def shapes(self) -> tuple[TreeShape | NoTree, ...]:
        """Where joins were to be trees, that of each branch of the plan, or why it has none."""
        return () if self.compiled is None else self.compiled.shapes

    @property
    def lying_answer(self) -> AnswerPlan | None:
        """The answer, where the rows that it is made of lie in the state one by one."""
        kept = None if self.compiled is None else self.compiled.kept
        return None if kept is None or kept.are_told else self.answer

    @property
    def has_tree(self) -> bool:
        """Whether some joins are maintained without joining."""
        return any(isinstance(shape, TreeShape) for shape in self.shapes)

    def sides_by(self, strategy: Strategy) -> tuple[str, ...]:
        """The sides of its joins whose partners are found so."""
        return () if self.compiled is None else self.compiled.sides_by(strategy)


def answering_way(
    answer: AnswerPlan,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: Chooser | None = None,
    *,
    buffers: Buffers = KEEP_ALL,
    trees: Mapping[TableName, int] | None = None,
    absorbs: Absorbs | None = None,
) -> Way:
    """How sketches are maintained beside the rows of an answer; BlockedError where not exactly.

    `verdict` is that on `answer.kept`; `trees` asks for joins without joining, `absorbs` for
    fixpoints by absorption.
    """
    verdict = verdict.required()
    compiled = compile_plan(
        answer.kept,
        partitions,
        verdict.key_columns,
        chooser,
        barriers=verdict.barrier_positions,
        buffers=buffers,
        answer=answer,
        trees=trees,
        absorbs=absorbs,
    )
    return replace(_exact(compiled), core=answer.kept, answer=answer)


def choose_way(
    core: Plan,
    whole: Verdict,
    verdict: Verdict,
    partitions: Mapping[AccessId, RangePartition],
    chooser: Chooser | None = None,
    *,
    buffers: Buffers = KEEP_ALL,
    trees: Mapping[TableName, int] | None = None,
    blocks: Sequence[PlannedBlock] = (),
    absorbs: Absorbs | None = None,
) -> Way:
    """How the sketches of `partitions` (by access) are maintained for a safe plan.

    `core` is the plan without its output columns and `verdict` its verdict; `whole` is the verdict
    on the whole plan, which touch mode goes by. `chooser` decides which sides of joins are kept,
    `buffers` bound what MIN, MAX and top-k keep, `trees` asks for joins without joining, by
    `blocks` where these are known, `absorbs` for fixpoints by absorption (see `compile_plan`).
    InvariantError where either verdict is unsafe.
    """
    whole, verdict = whole.required(), verdict.required()
    try:
        compiled = compile_plan(
            core,
            partitions,
            verdict.key_columns,
            chooser,
            barriers=verdict.barrier_positions,
            buffers=buffers,
            trees=trees,
            blocks=blocks,
            absorbs=absorbs,
        )
    except BlockedError as blocked:
        # Touch also needs that no other table changes, so there must not be one.
        return _without_circuit(blocked, whole, is_alone=len(scans_of(core)) == 1)
    return _exact(compiled)


def _exact(compiled: Compiled) -> Way:
    reason = "every operator is maintained incrementally"
    reason = f"{reason}; {compiled.note}" if compiled.note else reason
    return Way(Mode.EXACT, reason, None, compiled)


def _without_circuit(blocked: BlockedError, verdict: Verdict, *, is_alone: bool) -> Way:
    if verdict.root_keyed and is_alone:
        reason = (
            f"{blocked.message}; each group lies in one range, so the ranges of changed rows are "
            "added"
        )
        return Way(Mode.TOUCH, reason, blocked.span)
    return Way(Mode.RECAPTURE, blocked.message, blocked.span)
