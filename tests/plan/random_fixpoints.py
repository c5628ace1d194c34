"""Random plans with fixpoints of every kind, and plans whose results depend on single rows."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from impctl.data.schema import BOOLEAN, INTEGER, LONG, SHORT
from impctl.expr.nodes import And, Arithmetic, ArithmeticOp, Cast, Compare, CompareOp, Expr, Literal
from impctl.plan import nodes as p
from impctl.plan.lineage import for_answer, is_sketched_for_answer
from impctl.rules.witnesses import witnessed
from impctl.safety.judge import Verdict, carried_verdict
from impctl.sql.aggregates import result_type
from tests.plan.random_plans import FocusedMaker
from tests.plan.trials import Trial, make_trial, random_partition, random_partitions

_KINDS = (p.JoinKind.INNER,) * 6 + (p.JoinKind.LEFT, p.JoinKind.SEMI, p.JoinKind.ANTI)


class FixpointMaker(FocusedMaker):
    """Plans with a fixpoint."""

    def plan(self) -> p.Plan:
        """A plan with one fixpoint, mostly below other operators."""
        return self.above(self.fixpoint())

    def above(self, fixpoint: p.Fixpoint) -> p.Plan:
        """Operators on the rows of a fixpoint."""
        rng = self.rng
        plan: p.Plan = fixpoint
        if rng.random() < 0.4:
            plan = p.Select(plan, self._narrow(plan.attributes))
        match rng.randrange(6):
            case 0 | 1:
                plan = self._judged(self._grouped(plan))
            case 2:
                other = self._scan()
                kind = rng.choice(
                    (p.JoinKind.INNER, p.JoinKind.ANTI, p.JoinKind.ANTI, p.JoinKind.SEMI)
                )
                sides = (other, plan) if rng.random() < 0.7 else (plan, other)
                plan = p.Join(kind, *sides, self._equal(*(side.attributes for side in sides)))
                plan = self._judged(self._grouped(plan)) if rng.random() < 0.5 else plan
            case 3:
                plan = self._limited(plan)
            case 4:
                plan = p.Project(plan, tuple(self._copied(plan.attributes[:1])))
            case _:
                pass
        return plan

    def fixpoint(self) -> p.Fixpoint:
        """A fixpoint with one or two columns, sometimes with two parts in the step."""
        rng = self.rng
        kind = rng.choice((INTEGER, INTEGER, LONG))
        columns = tuple(self._fresh(kind) for _ in range(rng.choice((1, 2, 2))))
        base = self._narrowed(self._part(), kind, len(columns))
        step = self._step("r", columns)
        if rng.random() < 0.25:
            other = (
                self._step("r", columns)
                if rng.random() < 0.8
                else self._narrowed(self._scan(), kind, len(columns))
            )
            outputs = tuple(self._fresh(kind) for _ in columns)
            step = p.SetOperation(p.SetKind.UNION, True, step, other, outputs)
        return p.Fixpoint("r", base, step, columns, True)

    def _part(self) -> p.Plan:
        """What a base or step reads besides the fixpoint."""
        rng = self.rng
        match rng.randrange(8):
            case 0:
                return self._judged(self._grouped(self._base()))
            case 1:
                return self._grouped(self._base())
            case 2:
                return self._limited(self._scan())
            case 3:
                return p.Distinct(self._scan())
            case 4:
                scan = self._scan()
                return p.Select(scan, self.predicate(scan.attributes))
            case _:
                return self._scan()

    def _step(self, name: str, columns: Sequence[p.Attribute]) -> p.Plan:
        rng = self.rng
        leaf = self._leaf(name, columns)
        plan: p.Plan = leaf
        if rng.random() < 0.2:
            other = self._leaf(name, columns)
            plan = p.Join(
                p.JoinKind.INNER, leaf, other, self._equal(leaf.attributes, other.attributes)
            )
        if rng.random() < 0.9:
            part = self._part()
            kind = rng.choice(_KINDS)
            on = self._equal(plan.attributes, part.attributes)
            if kind is p.JoinKind.INNER and rng.random() < 0.5:
                plan = p.Join(kind, part, plan, on)
            else:
                plan = p.Join(kind, plan, part, on)
        if rng.random() < 0.2:
            plan = p.Select(plan, self.predicate(plan.attributes))
        columns_of_leaf = list(leaf.attributes)
        if rng.random() < 0.15:
            below = Compare(CompareOp.LESS, columns_of_leaf[0].ref(), Literal(3, INTEGER))
            kind = columns_of_leaf[0].type or INTEGER
            one = Arithmetic(ArithmeticOp.ADD, columns_of_leaf[0].ref(), Literal(1, kind))
            outputs: list[Expr] = [one, *self._chosen(plan, leaf, columns)[1:]]
            plan = p.Select(plan, below)
        else:
            outputs = self._chosen(plan, leaf, columns)
        computed = (
            p.ComputedColumn(self._fresh(columns_of_leaf[0].type), expr) for expr in outputs
        )
        return p.Project(plan, tuple(computed))

    def _leaf(self, name: str, columns: Sequence[p.Attribute]) -> p.Recursive:
        return p.Recursive(name, tuple(self._fresh(column.type) for column in columns))

    def _chosen(
        self, plan: p.Plan, leaf: p.Recursive, columns: Sequence[p.Attribute]
    ) -> list[Expr]:
        """An expression for each column, often the leaf's column unchanged."""
        kind = columns[0].type or INTEGER
        candidates: list[Expr] = [a.ref() for a in plan.attributes if a.type == kind]
        if kind == LONG:
            candidates += [Cast(a.ref(), kind) for a in plan.attributes if a.type == INTEGER]
        return [
            leaf.attributes[position].ref()
            if self.rng.random() < 0.35
            else self.rng.choice(candidates)
            for position, _ in enumerate(columns)
        ]

    def _equal(self, left: Sequence[p.Attribute], right: Sequence[p.Attribute]) -> Expr:
        rng = self.rng
        pairs = [(a, b) for a in left for b in right if {a.type, b.type} <= {INTEGER, LONG}]
        if not pairs:
            return Literal(True, BOOLEAN)
        op = rng.choice((CompareOp.EQUAL,) * 6 + (CompareOp.LESS, CompareOp.NULL_SAFE_EQUAL))
        a, b = rng.choice(pairs)
        equal = Compare(op, a.ref(), b.ref())
        if rng.random() < 0.15:
            c, d = rng.choice(pairs)
            return And((equal, Compare(CompareOp.EQUAL, c.ref(), d.ref())))
        return equal

    def _narrow(self, attributes: Sequence[p.Attribute]) -> Expr:
        column = self.rng.choice(attributes)
        return Compare(
            self.rng.choice((CompareOp.EQUAL, CompareOp.EQUAL, CompareOp.GREATER)),
            column.ref(),
            Literal(self.rng.choice((0, 1, 1, 2)), INTEGER),
        )

    def _copied(self, attributes: Sequence[p.Attribute]) -> list[p.ComputedColumn]:
        return [p.ComputedColumn(self._fresh(a.type), a.ref()) for a in attributes]


def make_fixpoint_trial(seed: int) -> Trial:
    """A trial with a fixpoint; tables and facts are those of `make_trial`."""
    rng = Random(f"fixpoint {seed}")
    root = FixpointMaker(rng).plan()
    partitions = random_partitions(rng, root, alike=True)
    return replace(make_trial(seed), root=root, partitions=partitions)


_JOINS_OF_LEVELS = (p.JoinKind.INNER,) * 7 + (p.JoinKind.LEFT, p.JoinKind.SEMI, p.JoinKind.ANTI)
_DEEPEST = 3


class BagMaker(FixpointMaker):
    """Plans with a fixpoint of UNION ALL."""

    def fixpoint(self) -> p.Fixpoint:
        """A fixpoint with one or two columns, and the level as the first or last one."""
        rng = self.rng
        kind = rng.choice((INTEGER, INTEGER, LONG))
        width = rng.choice((1, 2, 2))
        position = rng.choice((0, width))
        columns = tuple(self._fresh(kind) for _ in range(width + 1))
        base = self._narrowed(self._part(), kind, width)
        outputs = self._copied(base.attributes)
        outputs.insert(position, p.ComputedColumn(self._fresh(kind), Literal(0, kind)))
        step = self._step_of(columns, position)
        if rng.random() < 0.25:
            union_columns = tuple(self._fresh(kind) for _ in columns)
            step = p.SetOperation(
                p.SetKind.UNION, True, step, self._step_of(columns, position), union_columns
            )
        levels = rng.choice((None, None, _DEEPEST + 1, 50))
        return p.Fixpoint("r", p.Project(base, tuple(outputs)), step, columns, False, levels)

    def _step_of(self, columns: Sequence[p.Attribute], position: int) -> p.Plan:
        """A step that increments the level up to the deepest one."""
        rng = self.rng
        leaf = self._leaf("r", columns)
        level = leaf.attributes[position]
        kind = level.type or INTEGER
        plan: p.Plan = leaf
        if rng.random() < 0.9:
            part = self._part()
            join = rng.choice(_JOINS_OF_LEVELS)
            on = self._equal(plan.attributes, part.attributes)
            is_swapped = join is p.JoinKind.INNER and rng.random() < 0.5
            plan = p.Join(join, part, plan, on) if is_swapped else p.Join(join, plan, part, on)
        if rng.random() < 0.2:
            plan = p.Select(plan, self.predicate(plan.attributes))
        deepest = Literal(rng.randint(1, _DEEPEST), kind)
        plan = p.Select(plan, Compare(CompareOp.LESS, level.ref(), deepest))
        outputs = self._chosen(plan, leaf, columns)
        outputs[position] = Arithmetic(ArithmeticOp.ADD, level.ref(), Literal(1, kind))
        return p.Project(plan, tuple(p.ComputedColumn(self._fresh(kind), out) for out in outputs))


def make_bag_trial(seed: int) -> Trial:
    """A trial with a fixpoint of UNION ALL; tables and facts are those of `make_trial`."""
    rng = Random(f"bag {seed}")
    root = BagMaker(rng).plan()
    return replace(make_trial(seed), root=root, partitions=random_partitions(rng, root))


class _Narrower(FixpointMaker):
    def narrowed(self, plan: p.Plan) -> p.Plan:
        """The plan, mostly with a filter above its fixpoint."""
        if not isinstance(plan, p.Fixpoint):
            return plan.map_inputs(self.narrowed)
        if self.rng.random() < 0.3:
            return plan
        return p.Select(plan, self._narrow(plan.attributes))


def make_answer_trial(seed: int) -> Trial:
    """A trial whose fixpoints are sketched for the answer."""
    trial = make_fixpoint_trial(seed)
    return replace(trial, root=for_answer(_Narrower(Random(f"answer {seed}")).narrowed(trial.root)))


def is_for_answer(plan: p.Plan) -> bool:
    """Whether some fixpoint of the plan is sketched for the answer."""
    return any(
        isinstance(node, p.Fixpoint) and is_sketched_for_answer(node) for node in plan.walk()
    )


_SMALL = (CompareOp.LESS, CompareOp.LESS_EQUAL, CompareOp.GREATER, CompareOp.EQUAL)


class KeyedMaker(FixpointMaker):
    """Pairs of a key and a node: the base is one table, steps follow its rows with that key.

    With a `deepest` level, fixpoints are of UNION ALL with the level as an additional column.
    """

    deepest: int | None = None

    def above(self, fixpoint: p.Fixpoint) -> p.Plan:
        """Operators above the fixpoint that drop keys or rows of keys."""
        rng = self.rng
        plan: p.Plan = fixpoint
        key, node, *_ = plan.attributes
        match rng.randrange(9):
            case 0 | 1 | 2:
                plan = self._having(plan, (key,))
            case 3:
                plan = self._having(plan, (node,))
            case 4 | 5:
                other = self._scan()
                kind = rng.choice(
                    (p.JoinKind.ANTI, p.JoinKind.ANTI, p.JoinKind.INNER, p.JoinKind.SEMI)
                )
                sides = (other, plan) if rng.random() < 0.5 else (plan, other)
                plan = p.Join(kind, *sides, self._equal(*(side.attributes for side in sides)))
            case 6:
                order = (
                    p.SortKey(node.ref(), rng.random() < 0.5, True),
                    p.SortKey(key.ref(), False, True),
                )
                plan = p.TopK(plan, order[: rng.choice((1, 2, 2))], rng.choice((1, 2)))
            case 7:
                plan = p.Select(plan, self._narrow((node,)))
            case _:
                plan = self._judged(self._grouped(plan))
        if rng.random() < 0.2:
            plan = p.Project(plan, tuple(self._copied(plan.attributes[:1])))
        return plan

    def fixpoint(self) -> p.Fixpoint:
        """The step mostly changes only the node; a few change or drop the key."""
        rng = self.rng
        table = rng.choice(("t", "u"))
        columns = tuple(self._fresh(INTEGER) for _ in range(2 if self.deepest is None else 3))
        base: p.Plan = self._of(table if rng.random() < 0.9 else "t")
        if rng.random() < 0.2:
            base = self._having(base, base.attributes[:1])
        elif rng.random() < 0.3:
            base = p.Select(base, self._narrow(base.attributes[1:2]))
        added = [self._fresh(INTEGER) for _ in columns]
        first, *rest = self._numbers(base)
        outputs = (first, rng.choice(rest) if rest and rng.random() < 0.9 else first)
        computed = list(map(_column, added[:2], outputs))
        computed += [p.ComputedColumn(level, Literal(0, INTEGER)) for level in added[2:]]
        base, is_set = p.Project(base, tuple(computed)), self.deepest is None
        return p.Fixpoint("r", base, self._keyed_step(table, columns), columns, is_set)

    def _keyed_step(self, table: str, columns: Sequence[p.Attribute]) -> p.Plan:
        rng = self.rng
        leaf = p.Recursive("r", tuple(self._fresh(INTEGER) for _ in columns))
        if self.deepest is None and rng.random() < 0.08:
            return self._pairs(leaf)
        part: p.Plan = self._of(table if rng.random() < 0.9 else "u")
        if rng.random() < 0.15:
            part = self._having(part, part.attributes[:1])
        key, *others = self._numbers(part)
        on: list[Expr] = []
        if rng.random() < 0.9:
            on.append(_equality(leaf.attributes[0], key))
        if rng.random() < 0.8:
            on.append(_equality(leaf.attributes[1], rng.choice(others) if others else key))
        condition = And(tuple(on)) if len(on) == 2 else on[0] if on else None
        plan: p.Plan = p.Join(p.JoinKind.INNER, *self._shuffled(leaf, part), condition)
        leaves = [leaf]
        if self.deepest is None and rng.random() < 0.25:
            second = p.Recursive("r", tuple(self._fresh(INTEGER) for _ in columns))
            positions = (1, 0) if rng.random() < 0.5 else (1, 1)
            conditions = [
                _equality(leaf.attributes[position], second.attributes[position])
                for position in positions
            ]
            plan = p.Join(p.JoinKind.INNER, *self._shuffled(plan, second), And(tuple(conditions)))
            leaves.append(second)
        if rng.random() < 0.15:
            plan = p.Select(plan, self.predicate(plan.attributes))
        row = rng.choice(leaves).attributes
        kept = row[0] if rng.random() < 0.6 else key
        kept = rng.choice(row) if rng.random() < 0.1 else kept
        choice = rng.choice(self._numbers(part))
        added = [self._fresh(INTEGER) for _ in columns]
        outputs = list(map(_column, added[:2], (kept, choice)))
        if self.deepest is not None:
            level = leaf.attributes[2].ref()
            plan = p.Select(plan, Compare(CompareOp.LESS, level, Literal(self.deepest, INTEGER)))
            next_level = Arithmetic(ArithmeticOp.ADD, level, Literal(1, INTEGER))
            outputs.append(p.ComputedColumn(added[2], next_level))
        return p.Project(plan, tuple(outputs))

    def _pairs(self, leaf: p.Recursive) -> p.Plan:
        """A step over two rows of the fixpoint only, with equal or any keys."""
        rng = self.rng
        second = p.Recursive("r", tuple(self._fresh(one.type) for one in leaf.attributes))
        on = self._equal(leaf.attributes, second.attributes)
        if rng.random() < 0.5:
            on = And((on, _equality(leaf.attributes[0], second.attributes[0])))
        added = [self._fresh(INTEGER) for _ in leaf.attributes]
        kept = (second.attributes[0], rng.choice(leaf.attributes))
        return p.Project(
            p.Join(p.JoinKind.INNER, leaf, second, on), tuple(map(_column, added, kept))
        )

    def _of(self, table: str) -> p.Scan:
        """An access to this table."""
        drawn, self.drawn = self.drawn, (table,)
        result = self._scan()
        self.drawn = drawn
        return result

    def _numbers(self, plan: p.Plan) -> list[p.Attribute]:
        return [one for one in plan.attributes if one.type == INTEGER]

    def _shuffled(self, one: p.Plan, other: p.Plan) -> tuple[p.Plan, p.Plan]:
        return (one, other) if self.rng.random() < 0.5 else (other, one)

    def _having(self, plan: p.Plan, keys: Sequence[p.Attribute]) -> p.Plan:
        """Groups by these columns, filtered by an aggregate, mostly their count."""
        rng = self.rng
        computed = [p.ComputedColumn(self._fresh(key.type), key.ref()) for key in keys]
        numbers = [one for one in self._numbers(plan) if one not in keys] or list(keys)
        call = p.AggregateCall("count")
        if rng.random() < 0.4:
            call = p.AggregateCall(rng.choice(("max", "min", "max")), (rng.choice(numbers).ref(),))
        output = p.AggregateOutput(self._fresh(result_type(call)), call)
        groups = p.Aggregate(plan, tuple(computed), (output,))
        bound = Literal(rng.choice((0, 1, 1, 2, 3)), INTEGER)
        return p.Select(groups, Compare(rng.choice(_SMALL), output.attribute.ref(), bound))


def _column(added: p.Attribute, source: p.Attribute) -> p.ComputedColumn:
    return p.ComputedColumn(added, source.ref())


def _equality(one: p.Attribute, other: p.Attribute) -> Expr:
    return Compare(CompareOp.EQUAL, one.ref(), other.ref())


def make_keyed_trial(seed: int) -> Trial:
    """A trial with a keyed fixpoint; tables and facts are those of `make_trial`."""
    rng = Random(f"keyed {seed}")
    return _trial(seed, rng, KeyedMaker(rng))


def make_keyed_bag_trial(seed: int) -> Trial:
    """A trial with a keyed fixpoint of UNION ALL that ends by its level."""
    rng = Random(f"keyed bag {seed}")
    return _trial(seed, rng, KeyedMaker(rng, deepest=rng.randint(1, 3)))


def _trial(seed: int, rng: Random, maker: KeyedMaker) -> Trial:
    root = maker.plan()
    shared = {}
    for scan in root.scans:
        partition = random_partition(rng, scan)
        first = scan.attributes[0].name
        while rng.random() < 0.95 and partition[0] != first:
            partition = random_partition(rng, scan)
        shared.setdefault((scan.table, partition[0]), partition)
    partitions = {}
    for scan in root.scans:
        if rng.random() < 0.88:
            choices = [one for (table, _), one in shared.items() if table == scan.table]
            partitions[scan.access] = choices[0] if rng.random() < 0.95 else rng.choice(choices)
    if not partitions:
        (scan, *_) = root.scans
        partitions = {scan.access: random_partition(rng, scan)}
    return replace(make_trial(seed), root=root, partitions=partitions)


class WitnessMaker(FocusedMaker):
    """Groups with extremes, distinct rows and rows with a partner.

    With `casts`, conditions in EXISTS cast columns to a narrower type.
    """

    casts: bool = False

    def plan(self) -> p.Plan:
        rng = self.rng
        match rng.randrange(9):
            case 0:
                groups: p.Plan = self._grouped(self._base())
                if rng.random() < 0.5:
                    groups = self._judged(groups)
                outer = self._grouped(groups)
                return outer if rng.random() < 0.6 else self._judged(outer)
            case 1:
                return self._semi_joined(self._judged(self._grouped(self._base())))
            case 2:
                return self._judged(self._grouped(self._distinct_columns(self._base())))
            case 3:
                return self._distinct_columns(self._semi_joined(self._base()))
            case 4:
                groups = self._grouped(self._semi_joined(self._base()))
                return self._ranked(groups, groups.attributes[-1])
            case 5:
                groups = self._grouped(self._base())
                by = p.SortKey(groups.attributes[-1].ref(), rng.random() < 0.7, False)
                return self._judged(self._grouped(p.TopK(groups, (by,), rng.choice((1, 2)))))
            case _:
                return self._judged(self._grouped(self._base()))

    def _focused_call(self, attributes: Sequence[p.Attribute]) -> p.AggregateCall:
        rng, column = self.rng, self._numeric(attributes)
        if column is None or rng.random() < 0.2:
            return super()._focused_call(attributes)
        condition: Expr | None = None
        if rng.random() < 0.15:
            condition = self.predicate(attributes)
        argument: Expr = column.ref()
        if rng.random() < 0.1:
            argument = self.number(attributes, 1)
        name = rng.choice(("min", "max", "max"))
        return p.AggregateCall(name, (argument,), rng.random() < 0.1, condition)

    def _distinct_columns(self, child: p.Plan) -> p.Plan:
        """Distinct combinations of some columns."""
        attributes = child.attributes
        columns = self.rng.sample(attributes, min(len(attributes), self.rng.choice((1, 2))))
        outputs = tuple(p.ComputedColumn(self._fresh(a.type), a.ref()) for a in columns)
        return p.Distinct(p.Project(child, outputs))

    def _semi_joined(self, left: p.Plan) -> p.Plan:
        """The rows with a partner, by an equality and sometimes more."""
        rng, right = self.rng, self._scan()
        condition = self._condition(left.attributes, right.attributes)
        result = p.Join(p.JoinKind.SEMI, left, right, condition)
        number = self._numeric(right.attributes)
        if condition is None or number is None or rng.random() < 0.6:
            return result
        value: Expr = number.ref()
        if self.casts and number.type in (INTEGER, LONG):
            # Rules do not move expressions that can fail, so the condition stays in the join.
            value = Cast(value, SHORT)
        more = Compare(CompareOp.GREATER_EQUAL, value, Literal(rng.choice((0, 1)), INTEGER))
        return p.Join(p.JoinKind.SEMI, left, right, And((condition, more)))


def make_witness_trial(seed: int, *, casts: bool = False) -> Trial:
    """A trial whose plan has results that depend on single rows."""
    trial = make_trial(seed)
    rng = Random(f"witness {seed}")
    maker = WitnessMaker(rng)
    maker.casts = casts
    root = maker.plan()
    scans = root.scans
    chosen = [scan for scan in scans if rng.random() < 0.8] or list(scans)
    partitions = {scan.access: random_partition(rng, scan) for scan in chosen}
    return Trial(root, trial.tables, partitions, trial.facts)


def kept_by_witnesses(root: p.Plan, trial: Trial, verdict: Verdict) -> p.Plan:
    """The plan with witness nodes, which must be as safe as the query's plan."""
    result = witnessed(p.Query("", root), verdict, trial.columns(root))
    carried_verdict(verdict, result.query, trial.sketched)
    return result.query.root
