"""What may name a query, an update or a table."""

from __future__ import annotations

import pytest

from impctl.workload.names import is_identifier, is_name


@pytest.mark.parametrize("name", ["q", "Q_1", "7", "a-b.c", "_x", "a" * 128])
def test_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", ["", "-q", ".", "..", "a b", "a/b", "a\n", "ü", "a" * 129])
def test_what_is_no_name(name: str) -> None:
    assert not is_name(name)


@pytest.mark.parametrize("name", ["t", "_t", "T1", "a" * 128])
def test_names_of_tables(name: str) -> None:
    assert is_identifier(name)


@pytest.mark.parametrize("name", ["", "1t", "a-b", "a.b", "a b", "t\n", "tä", "a" * 129])
def test_what_is_no_name_of_a_table(name: str) -> None:
    assert not is_identifier(name)
