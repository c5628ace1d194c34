"""One of a thing and more of it, in words."""

from __future__ import annotations

from impctl.errors import count_text


def test_one_alone_is_told_in_the_singular() -> None:
    assert [count_text(count, "row") for count in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert count_text(1_000, "row") == "1,000 rows"


def test_a_noun_may_bring_its_plural() -> None:
    assert [count_text(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]
