"""What `bench` measures: figures, their cases, their measures, and what a measure is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from impctl.bench.record import Cell, Label, Metric
from impctl.errors import Location, Problem, WorkloadError
from impctl.workload.yaml import shown, suggestion

if TYPE_CHECKING:
    from impctl.measure.scratch import AgainstRecapture
    from impctl.service.context import Context
    from impctl.types import QueryName, TableName
    from impctl.workload.models import QuerySpec


# Options of a figure are those of its measure, which checks them.

OptionValue = int | float | str | bool | tuple[int | float | str, ...]


class CaseSpec(Struct, frozen=True):
    """One line or group of bars of a figure: a query and the labels of its cells."""

    query: QueryName
    labels: Mapping[str, str | int | float]
    location: Location


class ChartSpec(Struct, frozen=True):
    """`x` is a label, `y` are metrics, `series` labels, `log` axes on a logarithmic scale."""

    x: str
    y: tuple[str, ...]
    series: tuple[str, ...]
    log: tuple[str, ...]


class FigureSpec(Struct, frozen=True, kw_only=True):
    """What to measure (`measure`, shaped by `options`), on which cases, and how to draw it."""

    name: str
    title: str
    about: str
    claim: str = ""
    source: str = ""
    measure: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    cases: tuple[CaseSpec, ...]
    chart: ChartSpec
    location: Location
    places: Mapping[str, Location] = field(default_factory=dict)
    """The location of each option."""


# What a measure gets: the workload, the figure with one case, its options. Law: it is called once
# per case, for all cases before anything is generated or timed; so it reads its options when
# called, accesses tables only when iterated, and refuses unknown options (`only`). A failing case
# loses its cells from there on.


def words_of(sql: str) -> frozenset[str]:
    """The words of a text in lower case, which include the tables it reads."""
    return frozenset(re.findall(r"\w+", sql.lower()))


class CaseContext(Struct, frozen=True):
    """One case of one figure, the only one in `figure.cases`. Tables are already scaled by `scale`;
    sizes among the options go through `scaled`."""

    ctx: Context
    figure: FigureSpec
    repeat: int
    seed: int
    scale: float = 1.0

    @property
    def case(self) -> CaseSpec:
        return self.figure.cases[0]

    @property
    def query(self) -> QuerySpec:
        return self.ctx.workload.queries[self.case.query]

    def named_tables(self) -> tuple[TableName, ...]:
        """The workload's tables that the query's text names, including those it reads."""
        words = words_of(self.query.sql)
        return tuple(name for name in self.ctx.workload.tables if name.lower() in words)

    def cell(
        self,
        metrics: Mapping[str, Metric],
        labels: Mapping[str, Label] | None = None,
        *,
        checked: AgainstRecapture | None = None,
        equal: bool | None = None,
        note: str = "",
    ) -> Cell:
        """Make a cell with the labels of the case, then these."""
        every = {**self.case.labels, **(labels or {})}
        covers = None if checked is None else checked.covers
        slack = None if checked is None else checked.slack
        return Cell(
            self.figure.name, every, metrics, covers=covers, slack=slack, equal=equal, note=note
        )

    def step(self, message: str) -> None:
        """Report a step, with the figure it is for."""
        self.ctx.reporter.step(f"{self.figure.name}: {message}")

    def only(self, *names: str) -> None:
        """Refuse options other than these."""
        problems = [
            Problem(
                f"Measure `{self.figure.measure}` has no option {shown(name)}",
                self._place(name),
                suggestion(name, names, "its options") or "remove it",
            )
            for name in self.figure.options
            if name not in names
        ]
        if problems:
            raise WorkloadError(self._wrong(), problems)

    def numbers(
        self, name: str, default: Sequence[float] = (), *, least: float = 0.0
    ) -> tuple[float, ...]:
        """Read one or several numbers of at least `least`."""
        result: list[float] = []
        for value in self._values(name, default):
            if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
                raise self.refuse(name, f"numbers of at least {least:g}")
            result.append(float(value))
        return tuple(result)

    def whole_numbers(
        self, name: str, default: Sequence[int] = (), *, least: int = 1
    ) -> tuple[int, ...]:
        """Read one or several whole numbers of at least `least`."""
        result: list[int] = []
        for value in self._values(name, default):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.refuse(name, f"whole numbers of at least {least}")
            result.append(value)
        return tuple(result)

    def whole_number(self, name: str, default: int, *, least: int = 1) -> int:
        whole_numbers = self.whole_numbers(name, (default,), least=least)
        if len(whole_numbers) != 1:
            raise self.refuse(name, "one whole number")
        return whole_numbers[0]

    def scaled(self, name: str, default: int, *, least: int) -> int:
        """Read a whole number given at scale 1, like a table's rows; at least `least` when
        scaled."""
        return max(round(self.whole_number(name, default) * self.scale), least)

    def texts(self, name: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """Read one or several words that only the measure knows; numbers as written."""
        return tuple(str(value) for value in self._values(name, default))

    def text(self, name: str, default: str) -> str:
        texts = self.texts(name, (default,))
        if len(texts) != 1:
            raise self.refuse(name, "one word")
        return texts[0]

    def key(self) -> str:
        """The column that identifies rows, named by the option `key`."""
        return self.text("key", "id")

    def refuse(self, name: str, wanted: str) -> WorkloadError:
        """Make the error for an option that must be something else, such as "a ratio like
        `1U5Q`"."""
        message = f"Option `{name}` of figure `{self.figure.name}` must be {wanted}"
        hint = f"correct `with.{name}`"
        return WorkloadError(self._wrong(), [Problem(message, self._place(name), hint)])

    def choices(
        self, name: str, known: Sequence[str], default: Sequence[str] = ()
    ) -> tuple[str, ...]:
        """Read one or several words out of `known`."""
        values = self._values(name, default)
        for value in values:
            if value not in known:
                raise self.refuse(name, "one of " + ", ".join(f"`{word}`" for word in known))
        return tuple(str(value) for value in values)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.figure.options.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def _values(self, name: str, default: Sequence[OptionValue]) -> Sequence[OptionValue]:
        value = self.figure.options.get(name)
        if value is None:
            return default
        return value if isinstance(value, tuple) else (value,)

    def _place(self, option: str) -> Location:
        return self.figure.places.get(option, self.figure.location)

    def _wrong(self) -> str:
        return f"Figure `{self.figure.name}` has a problem"
