"""Figures of a suite: what to measure on which cases, with options that only the measure knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from impctl.bench.record import Figure, Label
from impctl.errors import Location, Problem, WorkloadError
from impctl.measure.kinds import MeasuredCase
from impctl.measure.run import words_of
from impctl.types import QueryName, TableName
from impctl.workload.yaml import shown, suggestion

OptionValue = int | float | str | bool | tuple[int | float | str, ...]


class CaseSpec(Struct, frozen=True):
    """One line or group of bars of a figure: a query and the labels of its cells."""

    query: QueryName
    labels: Mapping[str, Label]
    location: Location


class FigureSpec(Struct, frozen=True, kw_only=True):
    """What to measure (`measure`, shaped by `options`), on which cases, and how to draw it;
    `places` has the location of each option."""

    figure: Figure
    measure: str
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    cases: tuple[CaseSpec, ...]
    location: Location
    places: Mapping[str, Location] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.figure.name


class SuiteCase(MeasuredCase, frozen=True, kw_only=True):
    """One case of one figure of a suite. Tables are already scaled by `scale`; sizes among the
    options go through `scaled`. Law: a measure is called once per case, for all cases before
    anything is generated or timed; so it reads its options when called, and refuses unknown ones
    (`only`)."""

    spec: FigureSpec
    location: Location
    scale: float = 1.0

    def named_tables(self) -> tuple[TableName, ...]:
        """The workload's tables that the query's text names, including those it reads."""
        words = words_of(self.query.sql)
        return tuple(name for name in self.ctx.workload.tables if name.lower() in words)

    def only(self, *names: str) -> None:
        """Refuse options other than these."""
        problems = [
            Problem(
                f"Measure `{self.spec.measure}` has no option {shown(name)}",
                self._place(name),
                suggestion(name, names, "its options") or "remove it",
            )
            for name in self.spec.options
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

    def refuse(self, name: str, expected: str) -> WorkloadError:
        """Make the error for an option that must be something else, such as "a ratio like
        `1U5Q`"."""
        message = f"Option `{name}` of figure `{self.figure}` must be {expected}"
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
        value = self.spec.options.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def _values(self, name: str, default: Sequence[OptionValue]) -> Sequence[OptionValue]:
        value = self.spec.options.get(name)
        if value is None:
            return default
        return value if isinstance(value, tuple) else (value,)

    def _place(self, option: str) -> Location:
        return self.spec.places.get(option, self.spec.location)

    def _wrong(self) -> str:
        return f"Figure `{self.figure}` has a problem"
