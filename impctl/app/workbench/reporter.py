"""Where a use case says how far it is.

Law: reporting never changes a result, and a use case works the same with `SilentReporter`.
Out of scope: bars and lines (`cli.progress`); warnings, which belong to the `Outcome`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from impctl.app.results.results import Result


class Reporter(Protocol):
    """Gets each step before it begins, and its place among all where their number is known."""

    @property
    def spark_log(self) -> str:
        """How much of Spark's own log the user wants: `off`, or a level such as `warn`."""

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        """What begins now, as one short line: item `number` of `total`, or a part of the last one
        if these are 0."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """A result as soon as it is there, the last of `done`; the outcome has it too."""


class SilentReporter:
    """Says nothing."""

    spark_log = "off"

    def step(self, message: str, number: int = 0, total: int = 0) -> None:
        """Nothing."""

    def finished(self, result: Result, done: int, total: int) -> None:
        """Nothing."""
