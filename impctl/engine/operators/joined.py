"""Joined rows: a tree in bits mode whose joined rows are wanted too, and who takes part in them.

Identity of `JoinedRows`: the output's change is that of the rows which the tree joins, with their
copies; the columns are those shown of the nodes. Inputs are the tree's, brought in one after the
other, so that a table that stands in several nodes changes in one of them at a time. State: that of
`Tree` and `Live`, which it steps; no joined row. Cost: theirs, once for each input that changed,
and the rows that come out. NULL: a column of a left edge without a partner. Negative weights: what
goes is found in the tree as it was. A join that becomes empty puts its last rows out and no more.
`ToldRows` are those of an answer; as nobody above reads them, they are told only when asked.
Identity of `TakingPart`: the fragments of the rows that take part, which `JoinedRows` has found by
then; it reads its output only to be stepped after it, and has no state.
Not to be confused with `tree`, which puts out groups and never a joined row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.data.schema import SqlType
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.disagreement import loading
from impctl.engine.operator import Keeper, Operator
from impctl.engine.operators.kept import Runs
from impctl.engine.operators.live import Live
from impctl.engine.operators.project import Project
from impctl.engine.operators.tree import Tree
from impctl.engine.trees.enumerated import JoinedTree, Shown
from impctl.engine.trees.node import NodeState
from impctl.engine.trees.row_changes import Moved
from impctl.engine.trees.spec import JoinTree
from impctl.types import AttributeId


class JoinedRows(Operator):
    """The rows that `tree`, in bits mode, joins, with the columns `shown`."""

    def __init__(self, tree: JoinTree, shown: Sequence[Shown]) -> None:
        self.shown = tuple(shown)
        self.form = (tree, self.shown)
        self._tree = Tree(tree)
        self._live = Live(self._tree)
        self._at = {node.input: at for at, node in enumerate(tree.nodes) if node.input is not None}
        self._told: list[Batch] = []
        self._joined_rows = 0

    @property
    def joined_rows(self) -> int:
        return self._joined_rows

    def step(self, *batches: Batch | None) -> Batch:
        """The rows that came and went."""
        result: list[Batch] = []
        for number, batch in enumerate(batches):
            if batch is not None and len(batch):
                result += self._changed(number, batch)
        self._joined_rows += sum(map(len, result))
        return stacked_batches(result) if result else empty_batch(0)

    def step_untold(self, *batches: Batch | None) -> None:
        """The same step, all inputs at once, for whoever does not ask for the rows."""
        ran = self._tree.step(*batches)
        self._told.append(self._live.step(None, ran))

    def _changed(self, number: int, batch: Batch) -> list[Batch]:
        """The rows that came and went with a change of one input."""
        before = self.as_it_stands()
        inputs = [batch if at == number else None for at in range(len(self._at))]
        ran = self._tree.step(*inputs)
        seen = [node.seen for node in self._tree.nodes]
        self._told.append(self._live.step(None, ran))
        after = JoinedTree(self._tree.nodes, self.shown)
        return Moved(before, after, self._at[number], seen).rows()

    def as_it_stands(self) -> JoinedTree:
        """The tree, not to change with the next step."""
        nodes: list[NodeState] = []
        for node in self._tree.nodes:
            nodes.append(node.as_it_stands([nodes[link.child] for link in node.node.links]))
        return JoinedTree(nodes, self.shown)

    def told(self) -> Batch:
        """The fragments that came and went since this was asked last."""
        result, self._told = self._told, []
        filled = [batch for batch in result if len(batch)]
        return stacked_batches(filled) if filled else empty_batch(self._tree.tree.accesses)

    def arrangements(self) -> Sequence[Keeper]:
        result = {one.name: one for part in (self._tree, self._live) for one in part.arrangements()}
        return tuple(result.values())

    def counters(self) -> Mapping[str, int]:
        return {**self._tree.counters(), **self._live.counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._tree.take_up(counters)
        self._live.take_up(counters)


class ToldRows(JoinedRows):
    """The rows of an answer, put out for nobody and kept nowhere: the tree tells them when asked.

    `outputs` makes them of the joined rows. A step costs what the tree's does, unless what comes
    and goes is to be noted.
    """

    are_told = True
    bounded: frozenset[AttributeId] = frozenset()
    keys: tuple[AttributeId, ...] = ()

    def __init__(
        self,
        tree: JoinTree,
        shown: Sequence[Shown],
        outputs: Project,
        columns: Sequence[tuple[AttributeId, SqlType]],
    ) -> None:
        super().__init__(tree, shown)
        self.form = (tree, self.shown, outputs.form)
        self.beginning = f"{tree.name}."
        self.columns = tuple(columns)
        self._outputs = outputs
        self._noted: list[Batch] | None = None
        self._before: JoinedTree | None = None

    def step(self, *batches: Batch | None) -> Batch:
        """Nothing comes out; `TakingPart` is to be stepped."""
        if self._noted is None:
            self.step_untold(*batches)
        else:
            self._noted.append(super().step(*batches))
        return empty_batch(0)

    def note(self) -> None:
        """Remember from now on what comes and goes, and how the tree stands."""
        self._noted, self._before = [], self.as_it_stands()

    def noted(self) -> Batch:
        """What came and went since `note`, row by row."""
        filled = [batch for batch in self._noted or () if len(batch)]
        self._noted = None
        return self._outputs.step(stacked_batches(filled)) if filled else empty_batch(0)

    def before(self, noted: Batch) -> Batch:
        """The rows of the tree as it stood, whatever became of it."""
        assert self._before is not None, "it was noted"
        return self._put_out(self._before)

    def whole(self) -> Batch:
        """The rows of the tree as it stands."""
        return self._put_out(self.as_it_stands())

    def _put_out(self, tree: JoinedTree) -> Batch:
        rows = tree.whole()
        return self._outputs.step(rows) if len(rows) else rows

    def load(self, runs: Runs, code: int | None = None) -> None:
        """Take over the stored tree, to look at."""
        with loading():
            for keeper in self.arrangements():
                keeper.load(runs.get(keeper.name, ()))

    def says_like(self, other: Operator) -> bool:
        return isinstance(other, ToldRows) and self._outputs.says_like(other._outputs)


class TakingPart(Operator):
    """The fragments of what the joined rows stem from; stepped after them."""

    def __init__(self, joined: JoinedRows) -> None:
        self._joined = joined

    def step(self, rows: Batch) -> Batch:
        """What came into the sketches' counts and what went."""
        return self._joined.told()
