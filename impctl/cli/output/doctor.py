"""Findings of `doctor` as lines of text: a heading per subject, a line each, the fix below.

Law: every line begins with how bad it is, so that `grep problem` finds the problems; nothing but
the fix stands on a line with `fix:`.
Out of scope: JSON; how to end (`service.results`).
"""

from __future__ import annotations

from impctl.cli.output.errors import Mark
from impctl.cli.output.wrapped import wrapped
from impctl.service.results import Finding, Level
from impctl.service.text import plain

_COLOURS = {Level.OK: "32", Level.WARNING: "33", Level.PROBLEM: "31"}
_WIDTH = max(map(len, Level))


def finding_lines(
    finding: Finding, before: Finding | None, width: int | None, mark: Mark
) -> list[str]:
    """The lines of one finding; `before` is the one shown last."""
    lines = []
    if before is None or (before.area, before.subject) != (finding.area, finding.subject):
        lines.append(_heading(finding))
    level = Level(finding.level)
    lead = " " * (_WIDTH + 4)
    first, *more = wrapped(plain(finding.message), width, lead)
    lines.append("  " + mark(f"{level:<{_WIDTH}}", _COLOURS[level]) + first[_WIDTH + 2 :])
    lines += more
    if finding.fix is not None:
        lines += wrapped(plain(finding.fix), width, lead + "fix: ", lead + "     ")
    return lines


def _heading(finding: Finding) -> str:
    if finding.area == finding.subject:
        return finding.area
    return plain(f"{finding.area} {finding.subject}")
