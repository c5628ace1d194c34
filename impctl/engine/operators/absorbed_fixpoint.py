"""A fixpoint kept by what its rows are derived from, instead of by ranks.

Identity, input and output are those of a fixpoint (`operators.fixpoint`): T = base + step(T,
tables), and the change is the rows that came into T and went out of it. Method: absorption
(`engine.fixpoint.absorption`): rows have functions of the rows that they stem from, and one whose
function becomes false goes. All that derives rows stands in the step, the base too: what it derives
of no row of T. Its inputs are ingredients whose rows are the leaves; each row has a number, and
what is derived of it brings the number along. What comes is followed to its end before anything
goes, so that no row leaves that has a ground again.
Told are the same derivations as those of a fixpoint by ranks, with the same weights: sketches and
their counts are equal.
State: the leaves and the rows of T with their numbers, the derivations whose bodies are in T by
numbers, what the step's operators keep. Functions are not stored but found again from these: lazy
ones where a change touches them, and such a one may then know another way; whole ones all by the
first step after a restart.
Cost: that of `absorption`, some microseconds per derivation that came or went. Once after a restart
all derivations are sorted and gone through by rounds, in arrays (a chain takes a round for each of
its rows), and where functions are whole each takes some microseconds.
Out of scope: telling which rows derive one (`circuits.provenance`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from impctl.data.keys import distinct_values
from impctl.data.schema import LONG, SqlType
from impctl.data.vector import Ints, Vector
from impctl.engine.batch import Batch, empty_batch, stacked_batches
from impctl.engine.circuit import Circuit
from impctl.engine.consolidate import consolidated
from impctl.engine.disagreement import disagreement
from impctl.engine.fixpoint.absorption import Absorbs, Absorption
from impctl.engine.fixpoint.derivations import Grounded, grounded
from impctl.engine.fixpoint.limits import LIMITS, Limits
from impctl.engine.fixpoint.row_numbers import NUMBER, RowNumbers, RowsByNumber
from impctl.engine.operator import Keeper
from impctl.engine.operators.recursion import Recursion, apart_in_memory
from impctl.engine.row_index import RowIndex
from impctl.types import AttributeId
from impctl.values import dataclass

_HEAD = "head"
_OTHER_ROWS = "Rows of WITH RECURSIVE do not match their derivations"


@dataclass(frozen=True, slots=True)
class Ingredient:
    """An input whose rows are leaves: those of `columns` tell them apart, and their numbers go on
    in the column `number`. Rows of no table (`is_leaf` is false) are there for good."""

    columns: tuple[tuple[AttributeId, SqlType], ...]
    number: AttributeId
    is_leaf: bool = True


class AbsorbedFixpoint(Recursion):
    """Rows of `columns`; its inputs are those of `step` after the first, an ingredient each.

    In the step's first input are rows of T with their numbers in a column `number`; its output has
    the columns of T, and in those of `bodies` the numbers of all rows that took part: even ones of
    rows of T, odd ones of leaves, and NULL or less than zero for none. `accesses` is how many tags
    that carries. UnsupportedError beyond `limits`, EvaluationError where functions take more nodes
    than `absorbs` allows.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[AttributeId, SqlType]],
        number: AttributeId,
        step: Circuit,
        ingredients: Sequence[Ingredient],
        bodies: Sequence[AttributeId],
        accesses: int = 0,
        *,
        absorbs: Absorbs = Absorbs(),  # noqa: B008 - it never changes
        limits: Limits = LIMITS,
    ) -> None:
        super().__init__(name, number, step, (0, accesses))
        self.limits = limits
        self.absorbs = absorbs
        self.ingredients = tuple(ingredients)
        self.columns = tuple(columns)
        self._bodies = tuple(bodies)
        self.form = (
            self.columns,
            number,
            self.ingredients,
            self._bodies,
            accesses,
            step.wires,
            absorbs.ship,
        )
        self.rows = RowNumbers(f"{name}.rows", columns)
        self.leaves = tuple(
            RowNumbers(f"{name}.leaves{at}", ingredient.columns)
            for at, ingredient in enumerate(ingredients)
        )
        held = tuple((column, LONG) for column in (_HEAD, *self._bodies))
        self._made = RowIndex(f"{name}.derivations", held, (_HEAD,), 0)
        self._rows_given, self._leaves_given = f"{name}.rows_given", f"{name}.leaves_given"
        self._given = {self._rows_given: 0, self._leaves_given: 0}
        self._by_number = RowsByNumber(columns, number)
        self._absorption: Absorption | None = None
        """None where it is still to be found from what is kept."""
        self._gone: set[int] = set()
        """Leaves that went while it fills."""
        self._told: list[Batch] = []

    def end_by(self, limits: Limits) -> None:
        """Go no further than that, from now on."""
        self.limits = limits

    def step(self, *ingredients: Batch | None) -> Batch | None:
        """The rows that came or went; None while it fills."""
        numbered = [self._numbered(at, batch) for at, batch in enumerate(ingredients)]
        result = self._step.step(None, *numbered)
        result = result if result is not None and len(result) else None
        if self._is_filling:
            self._held_back[1].extend([] if result is None else [apart_in_memory(result)])
            return None
        return self._changed(None, (), result)

    def _numbered(self, at: int, batch: Batch | None) -> Batch | None:
        """Rows of an ingredient with their numbers; notes which leaves went."""
        if batch is None or not len(batch):
            return None
        ingredient = self.ingredients[at]
        if ingredient.is_leaf:
            own = [batch.columns[name] for name, _ in ingredient.columns]
            result = self.leaves[at].counted(own, batch.weights, self._fresh_leaves)
            self._gone.update(result.gone.tolist())
            numbers = result.numbers
        else:
            numbers = np.full(len(batch), -1, dtype=np.int64)
        columns = {**batch.columns, ingredient.number: Vector(LONG, numbers)}
        return Batch(columns, batch.weights, batch.tags)

    def _changed(
        self, base: Batch | None, tables: Sequence[Batch | None], waiting: Batch | None = None
    ) -> Batch:
        assert base is None, "all that derives rows stands in the step"
        held = self._held()
        gone, self._gone = self._gone, set()
        self._told = []
        moves = _Moves()
        came = self._came(moves, waiting)
        self._check(moves, gone)
        rounds = 0
        while entered := held.step((), came)[0]:
            rounds += 1
            self._count += len(entered)
            self.limits.check(rounds, self._count)
            moves.entered |= entered
            came = self._came(moves, self._stepped(self._by_number.rows([*entered], 1)))
        _, left = held.step(gone)
        if left:
            self._count -= len(left)
            self._came(moves, self._stepped(self._by_number.rows([*left], -1)))
        self._keep(moves)
        return self._net(moves.entered, left)

    def _came(self, moves: _Moves, batch: Batch | None) -> list[Grounded]:
        """The derivations that there are more of, noted and told with all others; heads that are
        new have numbers from now on."""
        if batch is None or not len(batch):
            return []
        if any(self._accesses):
            self._told.append(Batch({}, batch.weights, batch.tags))
        keys, known, owners = self.rows.found(
            [batch.columns[name] for name, _ in self.columns], len(batch)
        )
        new = (known < 0).nonzero()[0]
        known[new] = self._fresh_rows(len(new))
        parts = {_HEAD: Vector(LONG, known[owners])}
        for name in self._bodies:
            column = batch.columns[name]
            parts[name] = Vector(LONG, np.where(column.validity(), column.values, -1))
        noted = consolidated(Batch(parts, batch.weights, ()))
        if len(new):
            # Without one that is there now a row does not come, and its number is never used.
            heads = noted.columns[_HEAD].values[noted.weights > 0]
            new = new[np.isin(known[new], heads)]
            own = [column.take(new) for column in keys]
            self.rows.put(own, known[new], 1)
            self._by_number.put(own, known[new], 1)
        moves.noted.append(noted)
        return grounded(_matrix(noted.keep(noted.weights > 0)))

    def _check(self, moves: _Moves, gone: set[int]) -> None:
        """CountBelowZeroError where a derivation went all of whose leaves are there."""
        for noted in moves.noted:
            less = noted.keep(noted.weights < 0)
            is_open = [
                at for at, one in enumerate(grounded(_matrix(less))) if gone.isdisjoint(one.leaves)
            ]
            if is_open:
                self._check_left(less.take(np.array(is_open, dtype=np.int64)))

    def _check_left(self, less: Batch) -> None:
        """That of these derivations, some of which went, others are left."""
        heads = distinct_values(np.sort(less.columns[_HEAD].values))
        asked = Batch({_HEAD: Vector(LONG, heads)}, np.ones(len(heads), dtype=np.int64), ())
        codes = self._made.codes_of(asked)
        before = self._made.find(codes, [asked.columns[_HEAD]]).rows
        after = consolidated(stacked_batches([one for one in (before, less) if len(one)]))
        left = set(map(tuple, _matrix(after.keep(after.weights > 0)).tolist()))
        if not left.issuperset(map(tuple, _matrix(less).tolist())):
            raise disagreement(
                "A derivation of a row of WITH RECURSIVE was removed, but its table rows still "
                "exist"
            )

    def _keep(self, moves: _Moves) -> None:
        if moves.noted:
            noted = consolidated(stacked_batches(moves.noted))
            self._made.add(noted, self._made.codes_of(noted))

    def _net(self, entered: set[int], left: set[int]) -> Batch:
        """The rows that came or went; those that went have no numbers any more."""
        came = self._by_number.rows([*(entered - left)], 1)
        went = self._by_number.rows([*(left - entered)], -1)
        if left:
            gone = self._by_number.rows([*left], -1)
            own = [gone.columns[name] for name, _ in self.columns]
            self.rows.put(own, gone.columns[self._stamp].values, -1)
            self._by_number.put(own, gone.columns[self._stamp].values, -1)
        parts = (came, went)
        there = [part for part in parts if len(part)]
        if not there:
            return empty_batch(0)
        rows = stacked_batches(there)
        return Batch({name: rows.columns[name] for name, _ in self.columns}, rows.weights, ())

    def told(self) -> Batch:
        """What the last step changed in the derivations of the rows of T: their tags."""
        return stacked_batches(self._told) if self._told else empty_batch(sum(self._accesses))

    # Numbers.

    def _fresh_rows(self, count: int) -> Ints:
        return 2 * self._fresh(self._rows_given, count)

    def _fresh_leaves(self, count: int) -> Ints:
        return 2 * self._fresh(self._leaves_given, count) + 1

    def _fresh(self, counter: str, count: int) -> Ints:
        start = self._given[counter]
        self._given[counter] = start + count
        return np.arange(start, start + count, dtype=np.int64)

    # What is remembered.

    def _held(self) -> Absorption:
        """The functions, found from what is kept where that was taken up."""
        if self._absorption is None:
            self._absorption = Absorption(self.absorbs.ship, self.absorbs.nodes)
            rows = self.rows.whole()
            if len(rows):
                self._take_up_rows(self._absorption, rows)
            elif len(self.numbers()):
                raise disagreement(_OTHER_ROWS)
        return self._absorption

    def _take_up_rows(self, absorption: Absorption, rows: Batch) -> None:
        """CountBelowZeroError where what is kept derives other rows than are kept."""
        own, numbers = [rows.columns[name] for name, _ in self.columns], rows.columns[NUMBER].values
        self._by_number.put(own, numbers, 1)
        absorption.take_up(self.numbers())
        if set(absorption.rows) != set(numbers.tolist()):
            raise disagreement(_OTHER_ROWS)

    @property
    def absorption(self) -> Absorption:
        """The functions of the rows of T, by their numbers."""
        return self._held()

    def numbers(self) -> Ints:
        """All derivations whose bodies are in T: the number of the head, and those of what took
        part, less than zero for none; shape (derivations, 1 + numbers of the step)."""
        made = self._made.whole()
        if not len(made):
            return np.zeros((0, 1 + len(self._bodies)), dtype=np.int64)
        return _matrix(made)

    def arrangements(self) -> Sequence[Keeper]:
        leaves = (
            held.index
            for held, ingredient in zip(self.leaves, self.ingredients, strict=True)
            if ingredient.is_leaf
        )
        return (self.rows.index, self._made, *leaves, *self._step.arrangements())

    def counters(self) -> Mapping[str, int]:
        """How many numbers were given, how many rows T has, and the step's own."""
        return {**self._given, **super().counters()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        self._given = {name: counters[name] for name in self._given}
        super().take_up(counters)

    def output(self) -> Batch:
        """All rows of T. Cost: the rows."""
        rows = self.rows.whole()
        if not len(rows):
            return empty_batch(0)
        return Batch({name: rows.columns[name] for name, _ in self.columns}, rows.weights, ())


class _Moves:
    """What one step did so far: derivations that came or went, and rows that came in."""

    def __init__(self) -> None:
        self.noted: list[Batch] = []
        self.entered: set[int] = set()


def _matrix(batch: Batch) -> Ints:
    """The numbers of each row; shape (rows, columns)."""
    if not len(batch):
        return np.zeros((0, 0), dtype=np.int64)
    result: Ints = np.stack([column.values for column in batch.columns.values()], axis=1)
    return result
