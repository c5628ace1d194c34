"""What the store keeps beside a query's state, checked when it comes back.

Law: text that was written by another run is outside text: a field that is missing, unknown or of
the wrong type is a corrupt state, never a default.
Out of scope: the state itself (`store.states`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, fields
from typing import Any, Self

from impctl.app.capturing.range_depth import RangeDepth
from impctl.app.results.tree_work import TreeRecord
from impctl.errors import StateCorruptError
from impctl.store.records import StoredQuery, TablePin
from impctl.tables.changes import FilesMark
from impctl.tables.schema import schema_mark
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class StateMeta:
    """`way` is why the query is maintained as it is; `counters` number an aggregate's groups.

    `circuit` tells which circuit the state belongs to, `answer` whether it keeps the rows of the
    query's answer, `template` which release captured the sketch
    and which queries may ask for it with other constants (empty in older sketches), `moments` which
    values of the clock the query had, `marks` which commit of each table it stands at and `files`
    which files. `unsure` counts groups kept because a sum of doubles was too close to call: where
    slack may come from. `distant` names the sides of joins whose rows the state does not hold
    and Spark reads, `from_files` those that the engine reads, and groupings whose groups it does
    not hold; `read_rows` how many rows or groups each of these had when it was last filled or kept,
    `group_bytes` what such groups took then. `buffers` are pieces of which the best so many rows or
    values are kept, as was chosen; of these `group_bytes` tells what all took; `buffer_groups`
    how many groups those of first rows had that could be bounded. `side_reasons` say of all these
    why they are read, bounded or kept, where some are not kept.
    `depths` tell how evenly the ranges are filled, where that is counted. `ending` is how the
    answer is made of its rows, as of `app.capturing.kept_ending`. `trees` names the join trees
    that the state is of, empty without, `estimate` what was to be expected of a changed row where
    they were chosen by that: rows that it is joined to, tuples that it touches. `work` is what they
    have done since, for how many changes. `expires` is the next instant at which a row of a table
    with an expiry is no longer live, as of `app.preparing.expiry`, empty where nobody looked.
    `provenance` says how functions of recursion are shipped, empty where none are kept.
    """

    way: str
    circuit: str
    answer: bool = False
    template: str = ""
    moments: Mapping[str, str] = field(default_factory=dict)
    marks: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, FilesMark] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)
    unsure: int = 0
    distant: Sequence[str] = ()
    from_files: Sequence[str] = ()
    read_rows: Mapping[str, int] = field(default_factory=dict)
    group_bytes: Mapping[str, int] = field(default_factory=dict)
    buffers: Mapping[str, int] = field(default_factory=dict)
    buffer_groups: Mapping[str, int] = field(default_factory=dict)
    side_reasons: Mapping[str, str] = field(default_factory=dict)
    depths: Sequence[RangeDepth] = ()
    ending: Sequence[Any] = ()
    trees: str = ""
    estimate: Mapping[str, float] = field(default_factory=dict)
    work: Mapping[str, int] = field(default_factory=dict)
    expires: str = ""
    provenance: str = ""

    def as_stored(self) -> dict[str, Any]:
        """What `read` takes, made of what JSON has."""
        return {
            "way": self.way,
            "circuit": self.circuit,
            "answer": self.answer,
            "template": self.template,
            "moments": dict(self.moments),
            "marks": dict(self.marks),
            "files": {
                table: {"digest": mark.digest, "rows": mark.rows}
                for table, mark in self.files.items()
            },
            "counters": dict(self.counters),
            "unsure": self.unsure,
            "distant": list(self.distant),
            **({"from_files": list(self.from_files)} if self.from_files else {}),
            **({"read_rows": dict(self.read_rows)} if self.read_rows else {}),
            **({"group_bytes": dict(self.group_bytes)} if self.group_bytes else {}),
            **({"buffers": dict(self.buffers)} if self.buffers else {}),
            **({"buffer_groups": dict(self.buffer_groups)} if self.buffer_groups else {}),
            **({"side_reasons": dict(self.side_reasons)} if self.side_reasons else {}),
            "depths": [_stored_depth(depth) for depth in self.depths],
            "ending": list(self.ending),
            **({"trees": self.trees} if self.trees else {}),
            **({"estimate": dict(self.estimate)} if self.estimate else {}),
            **({"work": dict(self.work)} if self.work else {}),
            **({"expires": self.expires} if self.expires else {}),
            **({"provenance": self.provenance} if self.provenance else {}),
        }

    @property
    def layout(self) -> str:
        """How the state is kept; what a run took tells nothing of states that are kept otherwise.
        Empty where all of it is kept."""
        distant = [f"{side} by Spark" for side in self.distant]
        read = [f"{piece} read" for piece in self.from_files]
        bounded = [f"{piece} best {size}" for piece, size in self.buffers.items()]
        trees = [f"trees {self.trees}"] if self.trees else []
        return ", ".join(sorted([*distant, *read, *bounded, *trees]))

    def basis(self, pins: Sequence[TablePin]) -> dict[str, Any]:
        """What tells later whether a sketch stored with this may still be used.

        Of tables whose files are marked the schema is marked too: it is that of the same version.
        """
        schemas = {
            pin.table: schema_mark(pin.schema_json) for pin in pins if pin.table in self.files
        }
        stored = self.as_stored()
        return {**{name: stored[name] for name in _OF_BASIS if name in stored}, "schemas": schemas}

    @classmethod
    def read(cls, query: str, stored: Mapping[str, Any]) -> Self:
        """The meta of a stored query; StateCorruptError where it is not what impctl writes."""
        try:
            return cls(**{name: _CHECKS[name](value) for name, value in stored.items()})
        except (KeyError, TypeError, ValueError) as error:
            raise StateCorruptError(
                f"The stored state of query `{query}` has a description that impctl did not write",
                hint="run `impctl capture` to start again",
            ) from error


def layout_of(stored: StoredQuery) -> str | None:
    """How the state of a stored query is kept; None where its description cannot be read."""
    try:
        return StateMeta.read(stored.query, stored.state_meta).layout if stored.state_meta else ""
    except StateCorruptError:
        return None


def tree_record(stored: StoredQuery) -> TreeRecord | None:
    """What the trees of a stored query have done since its capture; None where it has none."""
    meta = StateMeta.read(stored.query, stored.state_meta)
    if not meta.trees:
        return None
    done = {name: meta.work.get(name, 0) for name in ("changes", "touched", "flips", "pairs")}
    return TreeRecord(**done, expected=meta.estimate.get("touched"))


_DEPTH = tuple(field.name for field in fields(RangeDepth))
_OF_BASIS = ("circuit", "answer", "template", "moments", "marks", "files")


def _stored_depth(depth: RangeDepth) -> dict[str, Any]:
    return {name: getattr(depth, name) for name in _DEPTH}


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError("not a text")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError("neither true nor false")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError("not a whole number")
    return value


def _count(value: Any) -> int:
    if _whole(value) < 0:
        raise ValueError("below zero")
    return int(value)


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("not a number")
    return float(value)


def _by_name(check: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    def checked(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise TypeError("not an object")
        return {_text(name): check(item) for name, item in value.items()}

    return checked


def _each(check: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    def checked(value: Any) -> list[Any]:
        if type(value) is not list:
            raise TypeError("not a list")
        return [check(item) for item in value]

    return checked


def _files_mark(value: Any) -> FilesMark:
    _exactly(FilesMark, value)
    rows = value["rows"]
    return FilesMark(_text(value["digest"]), None if rows is None else _whole(rows))


def _mark_and_value(value: Any) -> list[Any]:
    """A text and what it marks, which is checked when it is asked for; or nothing."""
    if type(value) is not list or len(value) not in (0, 2):
        raise TypeError("not a mark with a value")
    return [_text(value[0]), value[1]] if value else []


def _depth(value: Any) -> RangeDepth:
    _exactly(RangeDepth, value)
    return RangeDepth(
        table=_text(value["table"]),
        attribute=_text(value["attribute"]),
        ranges=_whole(value["ranges"]),
        rows=_whole(value["rows"]),
        largest=_whole(value["largest"]),
        at_capture=_number(value["at_capture"]),
    )


def _exactly(record: type[FilesMark] | type[RangeDepth], value: Any) -> None:
    """An object with the fields of this record, no more and no less."""
    if type(value) is not dict or value.keys() != {field.name for field in fields(record)}:
        raise TypeError("not a record of the expected form")


_CHECKS: Mapping[str, Callable[[Any], Any]] = {
    "way": _text,
    "circuit": _text,
    "answer": _flag,
    "template": _text,
    "moments": _by_name(_text),
    "marks": _by_name(_text),
    "files": _by_name(_files_mark),
    "counters": _by_name(_count),
    "unsure": _count,
    "distant": _each(_text),
    "from_files": _each(_text),
    "read_rows": _by_name(_count),
    "group_bytes": _by_name(_count),
    "buffers": _by_name(_count),
    "buffer_groups": _by_name(_count),
    "side_reasons": _by_name(_text),
    "depths": _each(_depth),
    "ending": _mark_and_value,
    "trees": _text,
    "estimate": _by_name(_number),
    "work": _by_name(_count),
    "expires": _text,
    "provenance": _text,
}
"""What each field is made of; a name that is not here is not impctl's."""
