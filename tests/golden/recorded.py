"""The records in `values/` and `wording/`, and how present output is compared with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tests.golden.scripts import Record, bad_inputs, fail, help_record, play, scripts
from tests.golden.transcript import HERE, Renames, difference, pretty, values_difference
from tests.golden.worlds import Worlds

BAD_INPUTS, HELP = "bad-inputs", "help"


def names(*, spark: bool) -> list[str]:
    """All that is recorded with Spark, or without it."""
    found = [script.name for script in scripts() if script.spark == spark]
    return found if spark else [*found, BAD_INPUTS, HELP]


def record_of(name: str, worlds: Worlds) -> Record:
    """What is printed now."""
    if name == HELP:
        return help_record()
    if name == BAD_INPUTS:
        return fail(bad_inputs(), worlds)
    (script,) = (script for script in scripts() if script.name == name)
    return play(script, worlds)


@dataclass(frozen=True)
class Recorded:
    """The two files of one name."""

    name: str

    @property
    def values(self) -> Path:
        return HERE / "values" / f"{self.name}.json"

    @property
    def wording(self) -> Path:
        return HERE / "wording" / f"{self.name}.txt"

    def write_values(self, record: Record) -> None:
        """Replace the recorded values."""
        self.values.write_text(pretty(record.values, packed=True) + "\n", encoding="utf-8")

    def write_wording(self, record: Record) -> None:
        """Replace the recorded wording."""
        self.wording.write_text(record.wording, encoding="utf-8")

    def differences(self, record: Record, renames: Renames) -> str:
        """How the present record differs from the files, and what to do; empty if it does not."""
        expected = json.loads(self.values.read_text(encoding="utf-8"))
        values = values_difference(expected, record.values, renames)
        wording = difference(self.wording.read_text(encoding="utf-8"), record.wording)
        parts = [_VALUES.format(name=self.name, diff=values)] if values else []
        parts += [_WORDING.format(name=self.name, diff=wording)] if wording else []
        return "\n".join(parts)


_VALUES = """\
Values of `{name}` are not those of tests/golden/values/{name}.json:

{diff}

If a key or a code only has a new name, add it to tests/golden/renames.yaml. If commands are meant
to do something else now, record the values again: python -m tests.golden values {name}
"""

_WORDING = """\
Texts of `{name}` are not those of tests/golden/wording/{name}.txt:

{diff}

If they are meant to be so, record them again: python -m tests.golden wording {name}
"""
