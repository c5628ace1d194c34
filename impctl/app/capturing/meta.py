"""What the store keeps beside a query's state, checked when it comes back.

Law: text that was written by another run is outside text: a field that is missing, unknown or of
the wrong type is a corrupt state, never a default.
Out of scope: the state itself (`store.states`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from impctl.app.capturing.range_depth import RangeDepth
from impctl.errors import StateCorruptError
from impctl.store.records import TablePin
from impctl.tables.change.files_mark import FilesMark
from impctl.tables.schema import schema_mark


class StateMeta(BaseModel):
    """`way` is why the query is maintained as it is; `counters` number an aggregate's groups.

    `circuit` tells which circuit the state belongs to, `answer` whether it keeps the rows of the
    query's answer, `template` which release captured the sketch
    and which queries may ask for it with other constants (empty in older sketches), `moments` which
    values of the clock the query had, `marks` which commit of each table it stands at and `files`
    which files. `unsure` counts groups kept because a sum of doubles was too close to call: where
    slack may come from. `distant` names the sides of joins whose rows the state does not hold.
    `depths` tell how evenly the ranges are filled, where that is counted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    way: str
    circuit: str
    answer: bool = False
    template: str = ""
    moments: dict[str, str] = {}
    marks: dict[str, str] = {}
    files: dict[str, FilesMark] = {}
    counters: dict[str, NonNegativeInt] = {}
    unsure: NonNegativeInt = 0
    distant: list[str] = []
    depths: list[RangeDepth] = []

    def basis(self, pins: Sequence[TablePin]) -> dict[str, Any]:
        """What tells later whether a sketch stored with this may still be used.

        Of tables whose files are marked the schema is marked too: it is that of the same version.
        """
        schemas = {
            pin.table: schema_mark(pin.schema_json) for pin in pins if pin.table in self.files
        }
        found = self.model_dump(
            include={"circuit", "answer", "template", "moments", "marks", "files"}
        )
        return {**found, "schemas": schemas}

    @classmethod
    def read(cls, query: str, stored: Mapping[str, Any]) -> Self:
        """The meta of a stored query; StateCorruptError where it is not what impctl writes."""
        try:
            # As JSON, which it came from: there, strict still takes an object for a record.
            return cls.model_validate_json(json.dumps(dict(stored)))
        except ValidationError as error:
            raise StateCorruptError(
                f"The stored state of query `{query}` has a description that impctl did not write",
                hint="run `impctl capture` to start again",
            ) from error
