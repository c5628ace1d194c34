"""Fragments, versions and counts in a line of text."""

from __future__ import annotations

import pytest

from impctl.app.results.results import SketchEntry
from impctl.cli.output.wording import fragments_text, plain, sketch_text, versions_text


@pytest.mark.parametrize(
    ("fragments", "total", "text"),
    [
        ((), 4, "{}"),
        ((2,), 4, "{2}"),
        ((2, 3), 4, "{2, 3}"),
        ((3, 1, 2), 4, "{1-3}"),
        ((0, 4), 4, "{0, NULL}"),
        ((0, 2, 4, 6, 8, 10), 99, "{0, 2, 4, 6, 8, 10}"),
        ((0, 2, 4, 6, 8, 10, 12, 13), 99, "{0, 2, 4, 6, 8, 10, and 2 more}"),
        (range(0, 4001, 2), 4000, "{0, 2, 4, 6, 8, 10, NULL, and 1,994 more}"),
    ],
)
def test_fragments(fragments, total, text: str) -> None:
    assert fragments_text(fragments, total) == text


def test_the_range_of_null_counts_where_it_is_held() -> None:
    assert sketch_text(SketchEntry("t", "c", (0, 4), 4)) == "t.c 2 of 5 {0, NULL}"
    assert sketch_text(SketchEntry("t", "c", (0, 3), 4)) == "t.c 2 of 4 {0, 3}"


def test_versions() -> None:
    assert versions_text({"a": 3, "b": 4}, {"a": 1, "b": 4}) == "a@1..3, b@4"


def test_control_characters_are_escaped_but_not_line_ends() -> None:
    assert plain("a\tb\nc\x1b[0m\r\x9b") == "a\tb\nc\\x1b[0m\\x0d\\x9b"
