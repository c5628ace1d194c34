"""Ranges, versions and counts in a line of text; a table, whether Rich lays it out or impctl."""

from __future__ import annotations

import random

import pytest

from impctl.cli.output import terminal
from impctl.cli.output.terminal import table_lines
from impctl.cli.output.wording import plain, sketch_text, versions_text
from impctl.service.formats import TextColumn
from impctl.service.results import SketchEntry


def test_the_range_of_null_counts_where_it_is_held() -> None:
    assert sketch_text(SketchEntry("t", "c", (0, 4), 4)) == "t.c 2 of 5 ranges"
    assert sketch_text(SketchEntry("t", "c", (0, 3), 4)) == "t.c 2 of 4 ranges"


def test_versions() -> None:
    assert versions_text({"a": 3, "b": 4}, {"a": 1, "b": 4}) == "a@1..3, b@4"


def test_control_characters_are_escaped_but_not_line_ends() -> None:
    assert plain("a\tb\nc\x1b[0m\r\x9b") == "a\tb\nc\\x1b[0m\\x0d\\x9b"


TEXTS = [
    "",
    "a",
    "NULL",
    "two words",
    "x" * 30,
    " lead",
    "trail ",
    "naïve",
    "語",
    "a\nb",
    "\x1b[1m",
]


def drawn(shown: list[TextColumn], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The same by Rich alone."""
    with monkeypatch.context() as patch:
        patch.setattr(terminal, "_narrow", lambda *_: None)
        return table_lines(shown)


def random_columns(draw: random.Random) -> list[TextColumn]:
    rows, is_odd = draw.randrange(5), draw.random() < 0.3
    texts: list[str | None] = [None, "1", "-22.5", "2024-01-01 00:00:00", "abc", "a b"]
    texts += TEXTS if is_odd else []
    return [
        TextColumn(
            draw.choice(["a", "total", "n n"]), draw.random() < 0.5, draw.choices(texts, k=rows)
        )
        for _ in range(draw.randrange(1, 6))
    ]


@pytest.mark.slow
def test_it_is_the_table_that_rich_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, own = random.Random(7), 0
    for _ in range(400):
        columns = random_columns(draw)
        shown = [[c.name, *("NULL" if t is None else t for t in c.texts)] for c in columns]
        own += terminal._narrow(shown, [c.is_number for c in columns], 80) is not None
        assert table_lines(columns) == drawn(columns, monkeypatch), columns
    assert own > 150


def test_what_does_not_fit_a_terminal_is_wrapped_by_rich() -> None:
    columns = [TextColumn("a", False, ["x " * 60]), TextColumn("b", True, ["1"])]
    lines = table_lines(columns, 100)
    assert len(lines) > 3
    assert max(map(len, lines)) <= 100
    assert sum(line.count("x") for line in lines) == 60


@pytest.mark.parametrize("text", ["x" * 500, "naïve " * 100])
def test_without_a_terminal_each_row_is_one_line(text: str) -> None:
    """Programs count lines and look for words in them."""
    lines = table_lines([TextColumn("a", False, [text] * 3), TextColumn("b", True, ["1"] * 3)])
    assert len(lines) == 5
    assert all(text.strip() in line for line in lines[2:])
