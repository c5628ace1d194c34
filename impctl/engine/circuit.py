"""A circuit: operators in the order in which a change passes them, sources below.

Law: `step` takes the signed change of every source, leaves every operator in the state it would
have after seeing all input at once, and returns the change of the last operator's output. An
operator whose inputs did not change is not stepped. A circuit is itself an operator, so it can be
part of another one. A failing step leaves it unusable: restore it from its last checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from impctl.data.memory import reserve
from impctl.engine.batch import Batch, stacked_batches
from impctl.engine.linear import SelectOperator
from impctl.engine.operator import Keeper, Limits, Operator
from impctl.stopwatch import Stopwatch

if TYPE_CHECKING:
    from impctl.engine.lookups import DistantRows

_MANY = 1 << 12  # Rows from which memory is reserved before an operator works on them


class Circuit(Operator):
    """Operators, each after those it reads; the output is that of the last one."""

    def __init__(
        self, operators: Sequence[Operator], inputs: Sequence[Sequence[int]] | None = None
    ) -> None:
        """`inputs[i]` are the positions that operator i reads, -1 - s for source s; default: a
        chain."""
        self._operators = tuple(operators)
        chain = [(position - 1,) for position in range(len(self._operators))]
        self._inputs = tuple(tuple(wires) for wires in (chain if inputs is None else inputs))
        self._positions = {id(operator): index for index, operator in enumerate(self._operators)}
        assert len(self._positions) == len(self._operators), "an operator stands in one place"
        self._keepers = _each_once(self._operators)
        self._spent = [0.0] * len(self._operators)

    def __iter__(self) -> Iterator[Operator]:
        return iter(self._operators)

    def step(self, *sources: Batch | None) -> Batch | None:
        known = {-1 - number: batch for number, batch in enumerate(sources) if batch is not None}
        return self._run(known, 0, len(self._operators))

    def step_past(
        self,
        sources: Sequence[Batch | None],
        past: Mapping[Operator, Batch],
        turned: Mapping[int, Batch],
    ) -> Batch | None:
        """Process one change of all sources together with changes of these operators' outputs.
        Operators in `past`, and those between them and their sources, are not stepped: the change
        of a source below one of them must not be given. Operators at the positions in `turned` are
        stepped, and emit this change too."""
        known = {-1 - number: batch for number, batch in enumerate(sources) if batch is not None}
        known.update({self._positions[id(operator)]: batch for operator, batch in past.items()})
        return self._run(known, 0, len(self._operators), turned)

    @property
    def wires(self) -> tuple[tuple[int, ...], ...]:
        """Per operator the positions that it reads, -1 - s for source s."""
        return self._inputs

    @property
    def spent(self) -> tuple[float, ...]:
        """Milliseconds that each operator took so far, in circuit order."""
        return tuple(self._spent)

    def place_of(self, operator: Operator) -> int:
        return self._positions[id(operator)]

    def can_output_at(self, wire: int) -> bool:
        """Whether all rows at this position can be read from the state alone."""
        if wire < 0:
            return False
        operator = self._operators[wire]
        is_known = operator.is_linear and all(map(self.can_output_at, self._inputs[wire]))
        return operator.can_output or is_known

    def output_at(self, wire: int, linear: Circuit) -> Batch:
        """All rows at a position that `can_output_at`. Operators without state are those of
        `linear`, a circuit with others at the same positions."""
        operator = self._operators[wire]
        if operator.can_output:
            return operator.output()
        inputs = (self.output_at(below, linear) for below in self._inputs[wire])
        result: Batch | None = linear._operators[wire].step(*inputs)
        assert result is not None, "an operator without state puts out a batch for each"
        return result

    def selections_above(self, source: int, count: int) -> tuple[SelectOperator, ...]:
        """The `count` selections that the rows of a source pass first, the lowest first."""
        wire, result = -1 - source, []
        for _ in range(count):
            (index,) = (index for index, wires in enumerate(self._inputs) if wire in wires)
            operator = self._operators[index]
            assert isinstance(operator, SelectOperator), "a condition is a selection above its scan"
            result.append(operator)
            wire = index
        return tuple(result)

    def resume(self, batch: Batch, operator: Operator) -> Batch | None:
        """The output's change if this operator's output changes by `batch`."""
        index = self._positions[id(operator)]
        return self._run({index: batch}, index + 1, len(self._operators))

    def arriving(self, batch: Batch, operator: Operator) -> Batch | None:
        """The change that arrives at an operator with one input, given a change of the only source.
        It passes the operators below as in a step, but no further."""
        index = self._positions[id(operator)]
        (wire,) = self._inputs[index]
        known = {-1: batch}
        self._run(known, 0, index)
        return known.get(wire)

    def _run(
        self,
        known: dict[int, Batch],
        start: int,
        end: int,
        turned: Mapping[int, Batch] = MappingProxyType({}),
    ) -> Batch | None:
        for index in range(start, end):
            batches = [known.get(wire) for wire in self._inputs[index]]
            output = None
            if any(batch is not None for batch in batches):
                for batch in batches:
                    if batch is not None and len(batch) >= _MANY:
                        reserve(batch.size)
                watch = Stopwatch()
                output = self._operators[index].step(*batches)
                self._spent[index] += watch.ms
            parts = [part for part in (output, turned.get(index)) if part is not None]
            filled = [part for part in parts if len(part)]
            if parts:
                known[index] = stacked_batches(filled) if filled else parts[0]
        return known.get(end - 1)

    def arrangements(self) -> Sequence[Keeper]:
        return self._keepers

    def counters(self) -> Mapping[str, int]:
        return {name: n for operator in self._operators for name, n in operator.counters().items()}

    def take_up(self, counters: Mapping[str, int]) -> None:
        for operator in self._operators:
            operator.take_up(counters)

    def start(self) -> Batch | None:
        """Bring all operators to their state over empty sources, those at the output's side first.
        So the own row of an upper operator is in place before rows from below arrive."""
        return self._start(0)

    def start_from(self, lowest: Operator) -> Batch | None:
        """The same without the operators before `lowest`."""
        return self._start(self._positions[id(lowest)])

    def _start(self, first: int) -> Batch | None:
        parts = []
        for operator in reversed(self._operators[first:]):
            result = operator.start()
            output = None if result is None else self.resume(result, operator)
            parts += [] if output is None or len(output) == 0 else [output]
        return stacked_batches(parts) if parts else None

    @property
    def joined_rows(self) -> int:
        return sum(operator.joined_rows for operator in self._operators)

    @property
    def unsure_rows(self) -> int:
        return sum(operator.unsure_rows for operator in self._operators)

    @property
    def reads(self) -> Sequence[DistantRows]:
        return tuple(side for operator in self._operators for side in operator.reads)

    def end_by(self, limits: Limits) -> None:
        for operator in self._operators:
            operator.end_by(limits)

    def fill(self, is_filling: bool) -> None:
        for operator in self._operators:
            operator.fill(is_filling)

    def ended(self, inputs: Sequence[bool]) -> None:
        """Announce, while filling, the sources from which no more rows will come."""
        known = {-1 - source: has_ended for source, has_ended in enumerate(inputs)}
        for index, (operator, wires) in enumerate(zip(self._operators, self._inputs, strict=True)):
            of_wires = [known[wire] for wire in wires]
            operator.ended(of_wires)
            known[index] = all(of_wires) and not operator.holds_back

    def keep_at_hand(self) -> Sequence[str]:
        kept = [name for operator in self._operators for name in operator.keep_at_hand()]
        self._keepers = _each_once(self._operators)
        return kept

    def filled(self) -> Iterator[Batch]:
        """The output's change from rows that operators held back, the lower ones' first."""
        for operator in self._operators:
            for batch in operator.filled():
                output = self.resume(batch, operator)
                if output is not None:
                    yield output


def _each_once(operators: Sequence[Operator]) -> tuple[Keeper, ...]:
    """The keepers of all operators; two that share one name would overwrite each other."""
    result: dict[str, Keeper] = {}
    for operator in operators:
        for keeper in operator.arrangements():
            known = result.setdefault(keeper.name, keeper)
            assert known is keeper, f"two keepers are called {keeper.name}"
    return tuple(result.values())
