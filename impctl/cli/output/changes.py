"""Changes of an answer as `changes --follow` prints them, look by look.

Law: rows and nothing else on stdout, in one format from the first look to the last, so that a CSV
has its names once; with `--json` a document per look. Between what versions goes to stderr.
Out of scope: the formats (`service.formats`).
"""

from __future__ import annotations

from typing import TextIO

from impctl.cli.job import Display
from impctl.cli.output.answer import changes_line, write_rows
from impctl.cli.output.json import JsonOutput
from impctl.service.formats import RowsFormat
from impctl.service.results import ChangesResult, FollowedRun
from impctl.service.text import plain


class ChangeLines:
    """What was printed so far decides whether names are still to come."""

    def __init__(self, stdout: TextIO, stderr: TextIO, display: Display) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._display = display
        self._has_names = False

    def write(self, result: ChangesResult, run: FollowedRun) -> None:
        """Print what one look found."""
        if self._display.json:
            output = JsonOutput("changes", self._stdout, run)
            output.changes(result)
            output.end((), (), None)
        else:
            rows_format = self._display.rows_format
            is_csv = rows_format is RowsFormat.CSV
            write_rows(
                result,
                rows_format,
                self._stdout,
                escape_formulas=self._display.escape_formulas,
                has_names=not (is_csv and self._has_names),
            )
            self._has_names = True
            self._stdout.flush()
            if self._display.verbosity >= 0:
                self._stderr.write(plain(changes_line(result)) + "\n")
        self._stdout.flush()
