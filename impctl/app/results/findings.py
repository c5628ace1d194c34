"""What `doctor` finds: one record per thing looked at, and the error that problems add up to.

Law: every finding says in a sentence what is, and all but the good ones how to mend it; a problem
carries the exit code of the command that would fail for it, a warning none.
Out of scope: looking (`app.doctor` and what it asks), rendering (`cli.output.doctor`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Self

from impctl.errors import ImpctlError, ProblemsFoundError
from impctl.types import TableName
from impctl.values import dataclass


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Area(StrEnum):
    """What a finding is about, in the order of the report."""

    SOFTWARE = "software"
    SPARK = "spark"
    TABLE = "table"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at; `check` is its stable name, `subject` the table or query it is about.

    `exit_code` is that of a command that fails for this problem, 0 otherwise.
    """

    area: str
    subject: str
    check: str
    level: str
    message: str
    fix: str | None = None
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class Subject:
    """Makes the findings about one thing."""

    area: Area
    name: str

    @classmethod
    def of_table(cls, table: TableName) -> Self:
        """A table of the workload."""
        return cls(Area.TABLE, table)

    def ok(self, check: str, message: str) -> Finding:
        """Nothing to do."""
        return Finding(self.area.value, self.name, check, Level.OK.value, message)

    def warning(self, check: str, message: str, fix: str) -> Finding:
        """Works, but costs or may fail one day."""
        return Finding(self.area.value, self.name, check, Level.WARNING.value, message, fix)

    def problem(self, check: str, message: str, fix: str, exit_code: int) -> Finding:
        """A command fails, or would in the next run."""
        level = Level.PROBLEM.value
        return Finding(self.area.value, self.name, check, level, message, fix, exit_code)

    def failed(self, check: str, error: ImpctlError) -> Finding:
        """The problem that an error stands for."""
        fix = error.hint or "run the command again with `-vv` and report it"
        return self.problem(check, error.message, fix, error.exit_code)


def problems_error(findings: Iterable[Finding], gravity: tuple[int, ...]) -> ImpctlError | None:
    """The error of a run that found problems, with the gravest one's exit code; None without."""
    problems = [finding for finding in findings if finding.level == Level.PROBLEM]
    if not problems:
        return None
    worst = min(problems, key=lambda finding: gravity.index(finding.exit_code))
    count = "a problem" if len(problems) == 1 else f"{len(problems)} problems"
    about = f"{worst.area} `{worst.subject}`" if worst.area != worst.subject else worst.area
    which = "" if len(problems) == 1 else "; the most serious one"
    return ProblemsFoundError(
        f"Found {count}{which} is about {about}" if which else f"Found {count} with {about}",
        hint=worst.fix,
        exit_code=worst.exit_code,
    )
