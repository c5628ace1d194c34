"""Variables: syntax, defaults, escapes, and that a value is never read a second time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impctl.workload.yaml import has_references, resolve_variables
from tests.support.random_cases import FEW

ENV = {"A": "1", "EMPTY": "", "TRICK": "${A} $$ x: [y]", "_x9": "low"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${A}", "1"),
        ("a${A}b${A}", "a1b1"),
        ("${_x9}", "low"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${NONE:-d}", "d"),
        ("${NONE:-}", ""),
        ("${A:-d}", "1"),
        ("${NONE:-a:-b $ c}", "a:-b $ c"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("$$${A}", "$1"),
        ("$A $ {A} $1 5$", "$A $ {A} $1 5$"),
        ("${TRICK}", "${A} $$ x: [y]"),
        ("${NONE:-two\nlines}", "two\nlines"),
    ],
)
def test_references_are_replaced_once(text: str, expected: str) -> None:
    resolved = resolve_variables(text, ENV)
    assert resolved.text == expected
    assert resolved.faults == ()


@pytest.mark.parametrize(
    ("text", "offset", "message"),
    [
        ("ab${NONE}", 2, "Variable `NONE` is not set"),
        ("${", 0, "never closed"),
        ("x ${A", 2, "never closed"),
        ("${}", 0, "not a variable"),
        ("${A-b}", 0, "not a variable"),
        ("${A:?b}", 0, "not a variable"),
        ("${ A }", 0, "not a variable"),
        ("${1A}", 0, "not a variable"),
        ("${Ä}", 0, "not a variable"),
        ("${NONE:-${A}}", 0, "not a variable"),
    ],
)
def test_what_cannot_be_resolved_is_a_fault_with_its_place(
    text: str, offset: int, message: str
) -> None:
    (fault,) = resolve_variables(text, ENV).faults
    assert fault.offset == offset
    assert message in fault.message
    assert fault.hint


def test_every_fault_is_found_and_no_value_shown() -> None:
    faults = resolve_variables("${A}${X}${Y}", {"A": "s3cret"}).faults
    assert [fault.offset for fault in faults] == [4, 8]
    assert "s3cret" not in repr([(fault.message, fault.hint) for fault in faults])


@FEW
@given(st.text(alphabet="$${}A:-bX \n", max_size=30))
def test_pieces_tell_where_each_character_came_from(text: str) -> None:
    resolved = resolve_variables(text, {"A": "value"})
    if resolved.faults:
        return
    ends = [piece.offset for piece in resolved.pieces[1:]] + [len(resolved.text)]
    for piece, end in zip(resolved.pieces, ends, strict=False):
        part = resolved.text[piece.offset : end]
        assert part
        if piece.is_literal:
            assert text[piece.source : piece.source + len(part)] == part
        else:
            assert text[piece.source] == "$"
    if not has_references(text):
        assert resolved.text == text


@FEW
@given(st.text(max_size=40))
def test_an_escaped_text_comes_back(text: str) -> None:
    assert resolve_variables(text.replace("$", "$$"), {}).text == text
