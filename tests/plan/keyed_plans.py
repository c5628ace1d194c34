"""Random plans with a fixpoint that may be keyed on its first column, and what looks at its rows.

Law: as `fixpoint_plans`; all accesses of a table that are sketched on one column have the same
ranges, and most often the base and the step read one table and are sketched on its first column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from impctl.data.schema import INTEGER
from impctl.expr.nodes import And, Arithmetic, ArithmeticOp, Compare, CompareOp, Expr, Literal
from impctl.plan.nodes import (
    Aggregate,
    AggregateCall,
    AggregateOutput,
    Attribute,
    ComputedColumn,
    Fixpoint,
    Join,
    JoinKind,
    Plan,
    Project,
    Recursive,
    Scan,
    Select,
    SortKey,
    TopK,
    attributes_of,
    scans_of,
)
from tests.plan.call_types import call_type
from tests.plan.fixpoint_plans import FixpointMaker
from tests.plan.trials import Trial, make_trial, random_partition

_SMALL = (CompareOp.LESS, CompareOp.LESS_EQUAL, CompareOp.GREATER, CompareOp.EQUAL)


class KeyedMaker(FixpointMaker):
    """Pairs of a key and a node: the base of one table, steps along its rows with that key.

    With a `deepest` level fixpoints are of UNION ALL, and have the level as one more column.
    """

    def __init__(self, rng: Random, deepest: int | None = None) -> None:
        super().__init__(rng)
        self.deepest = deepest

    def above(self, fixpoint: Fixpoint) -> Plan:
        """Something above the fixpoint that keys, or rows of keys, can fail."""
        rng = self.rng
        plan: Plan = fixpoint
        key, node, *_ = attributes_of(plan)
        match rng.randrange(9):
            case 0 | 1 | 2:
                plan = self._having(plan, (key,))
            case 3:
                plan = self._having(plan, (node,))
            case 4 | 5:
                other = self._scan()
                kind = rng.choice((JoinKind.ANTI, JoinKind.ANTI, JoinKind.INNER, JoinKind.SEMI))
                sides = (other, plan) if rng.random() < 0.5 else (plan, other)
                plan = Join(kind, *sides, self._equal(*map(attributes_of, sides)))
            case 6:
                order = (
                    SortKey(node.ref(), rng.random() < 0.5, True),
                    SortKey(key.ref(), False, True),
                )
                plan = TopK(plan, order[: rng.choice((1, 2, 2))], rng.choice((1, 2)))
            case 7:
                plan = Select(plan, self._narrow((node,)))
            case _:
                plan = self._judged(self._grouped(plan))
        if rng.random() < 0.2:
            plan = Project(plan, tuple(self._copied(attributes_of(plan)[:1])))
        return plan

    def fixpoint(self) -> Fixpoint:
        """The step changes the node alone, but for a few that change or forget the key."""
        rng = self.rng
        table = rng.choice(("t", "u"))
        columns = tuple(self._fresh(INTEGER) for _ in range(2 if self.deepest is None else 3))
        base: Plan = self._of(table if rng.random() < 0.9 else "t")
        if rng.random() < 0.2:
            base = self._having(base, attributes_of(base)[:1])
        elif rng.random() < 0.3:
            base = Select(base, self._narrow(attributes_of(base)[1:2]))
        made = [self._fresh(INTEGER) for _ in columns]
        first, *rest = self._numbers(base)
        outputs = (first, rng.choice(rest) if rest and rng.random() < 0.9 else first)
        own = list(map(_column, made[:2], outputs))
        own += [ComputedColumn(level, Literal(0, INTEGER)) for level in made[2:]]
        base, is_set = Project(base, tuple(own)), self.deepest is None
        return Fixpoint("r", base, self._keyed_step(table, columns), columns, is_set)

    def _keyed_step(self, table: str, columns: Sequence[Attribute]) -> Plan:
        rng = self.rng
        leaf = Recursive("r", tuple(self._fresh(INTEGER) for _ in columns))
        if self.deepest is None and rng.random() < 0.08:
            return self._pairs(leaf)
        part: Plan = self._of(table if rng.random() < 0.9 else "u")
        if rng.random() < 0.15:
            part = self._having(part, attributes_of(part)[:1])
        key, *others = self._numbers(part)
        on: list[Expr] = []
        if rng.random() < 0.9:
            on.append(_same(leaf.attributes[0], key))
        if rng.random() < 0.8:
            on.append(_same(leaf.attributes[1], rng.choice(others) if others else key))
        condition = And(tuple(on)) if len(on) == 2 else on[0] if on else None
        plan: Plan = Join(JoinKind.INNER, *self._turned(leaf, part), condition)
        leaves = [leaf]
        if self.deepest is None and rng.random() < 0.25:
            again = Recursive("r", tuple(self._fresh(INTEGER) for _ in columns))
            places = (1, 0) if rng.random() < 0.5 else (1, 1)
            also = [_same(leaf.attributes[at], again.attributes[at]) for at in places]
            plan = Join(JoinKind.INNER, *self._turned(plan, again), And(tuple(also)))
            leaves.append(again)
        if rng.random() < 0.15:
            plan = Select(plan, self.predicate(attributes_of(plan)))
        own = rng.choice(leaves).attributes
        kept = own[0] if rng.random() < 0.6 else key
        kept = rng.choice(own) if rng.random() < 0.1 else kept
        choice = rng.choice(self._numbers(part))
        made = [self._fresh(INTEGER) for _ in columns]
        outputs = list(map(_column, made[:2], (kept, choice)))
        if self.deepest is not None:
            level = leaf.attributes[2].ref()
            plan = Select(plan, Compare(CompareOp.LESS, level, Literal(self.deepest, INTEGER)))
            deeper = Arithmetic(ArithmeticOp.ADD, level, Literal(1, INTEGER))
            outputs.append(ComputedColumn(made[2], deeper))
        return Project(plan, tuple(outputs))

    def _pairs(self, leaf: Recursive) -> Plan:
        """A step over two rows of the fixpoint alone, of one key or of any two."""
        rng = self.rng
        again = Recursive("r", tuple(self._fresh(one.type) for one in leaf.attributes))
        on = self._equal(leaf.attributes, again.attributes)
        if rng.random() < 0.5:
            on = And((on, _same(leaf.attributes[0], again.attributes[0])))
        made = [self._fresh(INTEGER) for _ in leaf.attributes]
        kept = (again.attributes[0], rng.choice(leaf.attributes))
        return Project(Join(JoinKind.INNER, leaf, again, on), tuple(map(_column, made, kept)))

    def _of(self, table: str) -> Scan:
        """An access of this table."""
        drawn, self.drawn = self.drawn, (table,)
        result = self._scan()
        self.drawn = drawn
        return result

    def _numbers(self, plan: Plan) -> list[Attribute]:
        return [one for one in attributes_of(plan) if one.type == INTEGER]

    def _turned(self, one: Plan, other: Plan) -> tuple[Plan, Plan]:
        return (one, other) if self.rng.random() < 0.5 else (other, one)

    def _having(self, plan: Plan, keys: Sequence[Attribute]) -> Plan:
        """Groups by these columns that pass by a function of many rows, mostly of their count."""
        rng = self.rng
        own = [ComputedColumn(self._fresh(key.type), key.ref()) for key in keys]
        numbers = [one for one in self._numbers(plan) if one not in keys] or list(keys)
        call = AggregateCall("count")
        if rng.random() < 0.4:
            call = AggregateCall(rng.choice(("max", "min", "max")), (rng.choice(numbers).ref(),))
        made = AggregateOutput(self._fresh(call_type(call)), call)
        groups = Aggregate(plan, tuple(own), (made,))
        bound = Literal(rng.choice((0, 1, 1, 2, 3)), INTEGER)
        return Select(groups, Compare(rng.choice(_SMALL), made.attribute.ref(), bound))


def _column(made: Attribute, of: Attribute) -> ComputedColumn:
    return ComputedColumn(made, of.ref())


def _same(one: Attribute, other: Attribute) -> Expr:
    return Compare(CompareOp.EQUAL, one.ref(), other.ref())


def make_keyed_trial(seed: int) -> Trial:
    """A trial with such a fixpoint; tables and facts are those of the seed's own trial."""
    rng = Random(f"keyed {seed}")
    return _trial(seed, rng, KeyedMaker(rng))


def make_keyed_bag_trial(seed: int) -> Trial:
    """The same of UNION ALL, with levels that end it."""
    rng = Random(f"keyed bag {seed}")
    return _trial(seed, rng, KeyedMaker(rng, deepest=rng.randint(1, 3)))


def _trial(seed: int, rng: Random, maker: KeyedMaker) -> Trial:
    root = maker.plan()
    shared = {}
    for scan in scans_of(root):
        partition = random_partition(rng, scan)
        first = scan.attributes[0].name
        while rng.random() < 0.95 and partition[0] != first:
            partition = random_partition(rng, scan)
        shared.setdefault((scan.table, partition[0]), partition)
    partitions = {}
    for scan in scans_of(root):
        if rng.random() < 0.88:
            own = [one for (table, _), one in shared.items() if table == scan.table]
            partitions[scan.access] = own[0] if rng.random() < 0.95 else rng.choice(own)
    if not partitions:
        (scan, *_) = scans_of(root)
        partitions = {scan.access: random_partition(rng, scan)}
    return replace(make_trial(seed), root=root, partitions=partitions)
