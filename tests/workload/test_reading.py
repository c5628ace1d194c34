"""Reading nodes: problems are noted once, in file order, and never stop the reading."""

from __future__ import annotations

import pytest

from impctl.workload.yaml import FileReading, Lines, compose, inside, shown, suggestion


def reading_of(text: str) -> tuple[FileReading, dict[str, object]]:
    reading = FileReading(Lines("f", text), {})
    entries = reading.entries(compose(text), "the file")
    return reading, {name: entry.value for name, entry in entries.items()}


def messages(reading: FileReading) -> list[str]:
    return [problem.message for problem in reading.problems]


def test_a_problem_met_twice_through_an_alias_is_told_once() -> None:
    reading, nodes = reading_of("a: &a [1]\nb: *a\n")
    for name in "ab":
        reading.text(nodes[name], "`x`")  # type: ignore[arg-type]
    assert messages(reading) == ["`x` must be text, not a list"]


def test_problems_are_sorted_by_place() -> None:
    reading, nodes = reading_of("a: [1]\nb: [1]\n")
    reading.text(nodes["b"], "`b`")  # type: ignore[arg-type]
    reading.text(nodes["a"], "`a`")  # type: ignore[arg-type]
    assert messages(reading) == ["`a` must be text, not a list", "`b` must be text, not a list"]


def test_a_node_that_is_absent_is_no_problem_here() -> None:
    reading, _ = reading_of("a: 1\n")
    assert reading.text(None, "`x`") is None
    assert reading.cell(None, "`x`", "a value") is None
    assert reading.entries(None, "`x`") is None
    assert reading.elements(None, "`x`") is None
    assert reading.record(None, "`x`", ("a",)) is None
    assert reading.columns(None, "`x`") is None
    assert reading.settings(None, "`x`") is None
    assert reading.choice(None, "`x`", ["a"]) is None
    assert reading.problems == ()


def test_a_record_tells_unknown_and_missing_keys_and_keeps_the_rest() -> None:
    reading, nodes = reading_of("a: {x: 1, z: 2}\n")
    fields = reading.record(nodes["a"], "`a`", ("x", "y"))  # type: ignore[arg-type]
    assert fields is not None
    assert list(fields) == ["x"]
    assert messages(reading) == ["Key `y` is missing in `a`", "Key `z` is unknown in `a`"]


@pytest.mark.parametrize(
    ("name", "known", "hint"),
    [
        ("tabels", ["tables", "queries"], "did you mean `tables`?"),
        ("TABLES", ["tables", "queries"], "did you mean `tables`?"),
        ("xyz", ["tables", "queries"], "keys: `tables`, `queries`"),
        ("xyz", [], None),
        ("x" * 10_000, ["tables"], "keys: `tables`"),
        ("?", [f"k{n}" for n in range(30)], "keys: " + ", ".join(f"`k{n}`" for n in range(20))),
    ],
)
def test_did_you_mean(name: str, known: list[str], hint: str | None) -> None:
    result = suggestion(name, known, "keys")
    if len(known) > 20:
        assert result == f"{hint}, ..."
    else:
        assert result == hint


def test_names_in_messages() -> None:
    assert shown("a b") == "`a b`"
    assert shown("\x1b[0m") == "`\\x1b[0m`"
    assert inside("`a`", "b\n") == "`a.b\\n`"
    assert len(shown("x" * 10_000)) < 90
