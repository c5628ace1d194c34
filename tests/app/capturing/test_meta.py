"""What the store keeps beside a state comes back as it was, or is called corrupt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from impctl.errors import StateCorruptError
from impctl.service.stored import RangeDepth, StateMeta
from impctl.store.records import TablePin
from impctl.tables.changes import FilesMark

META = StateMeta(
    way="every operator is maintained incrementally",
    circuit="c",
    answer=True,
    template="t",
    moments={"now": "2026-01-01"},
    marks={"t": "m"},
    files={"t": FilesMark("ab", 3), "u": FilesMark("cd", None)},
    counters={"n": 4},
    unsure=2,
    distant=["join0.left"],
    from_files=["join0.right"],
    read_rows={"join0.right": 7},
    side_reasons={"join0.right": "no change needs it"},
    depths=[RangeDepth("t", "a", 4, 10, 5, 1.5), RangeDepth("t", "b", 4, 10, 5, 0)],
    ending=["mark", ["tuple"]],
    trees="0f",
    provenance="lazy",
)
MARK = {"digest": "ab", "rows": 3}
DEPTH = {"table": "t", "attribute": "a", "ranges": 4, "rows": 10, "largest": 5, "at_capture": 1.5}


def read(stored: dict[str, Any]) -> StateMeta:
    return StateMeta.read("q", json.loads(json.dumps(stored)))


def test_what_was_stored_comes_back() -> None:
    assert read(META.as_stored()) == META
    least = StateMeta(way="w", circuit="c")
    assert read({"way": "w", "circuit": "c"}).as_stored() == least.as_stored()
    assert type(read(META.as_stored()).depths[1].at_capture) is float


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unknown", 1),
        *(
            (name, v)
            for name in ("way", "circuit", "template", "provenance")
            for v in (None, 1, ["w"])
        ),
        *(("answer", value) for value in (None, 1, 0, "true")),
        *(
            (name, v)
            for name in ("moments", "marks")
            for v in (None, [], "x", {"t": 1}, {"t": None})
        ),
        *(("files", v) for v in (None, [], {"t": None}, {"t": "ab"}, {"t": {"digest": "ab"}})),
        *(("files", {"t": {**MARK, "rows": rows}}) for rows in (1.0, True, "3")),
        *(("files", {"t": mark}) for mark in ({**MARK, "digest": 1}, {**MARK, "more": 1})),
        *(("counters", value) for value in (None, [], {"n": -1}, {"n": 1.0}, {"n": True})),
        *(("unsure", value) for value in (None, -1, 1.5, "1", True)),
        *(("ending", value) for value in (None, "u", ["mark"], [1, []], ["mark", [], 1])),
        *(("distant", value) for value in (None, "u", {"u": 1}, [1], [None])),
        *(("depths", value) for value in (None, {}, [None], [{}], [[]], [{**DEPTH, "more": 1}])),
        *(("depths", [{**DEPTH, name: None}]) for name in DEPTH),
        *(("depths", [{**DEPTH, "at_capture": v}]) for v in ("1", True, float("nan"))),
        *(("depths", [{**DEPTH, "rows": value}]) for value in (1.0, "1", True)),
    ],
)
def test_what_impctl_would_not_have_written_is_corrupt(name: str, value: Any) -> None:
    with pytest.raises(StateCorruptError, match="query `q`"):
        read({**META.as_stored(), name: value})


@pytest.mark.parametrize("name", ["way", "circuit"])
def test_what_has_no_default_must_be_there(name: str) -> None:
    stored = META.as_stored()
    del stored[name]
    with pytest.raises(StateCorruptError):
        read(stored)


def test_the_basis_is_part_of_it_and_marks_the_schemas_of_marked_files() -> None:
    pins = [TablePin(t, f"/{t}", f"id-{t}", 1, '{"fields": []}') for t in ("t", "v")]
    basis = META.basis(pins)
    stored = META.as_stored()
    assert {name: basis[name] for name in basis if name != "schemas"} == {
        name: stored[name]
        for name in ("circuit", "answer", "template", "moments", "marks", "files")
    }
    assert set(basis["schemas"]) == {"t"}
