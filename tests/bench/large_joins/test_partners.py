"""Tables of keys: so many rows of each, in no order, the same for the same arguments."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from impctl.bench.large_joins.partners import partners_table
from impctl.errors import UsageError


@pytest.mark.parametrize("key", ["a", "c"])
def test_every_key_has_as_many_rows_and_the_last_what_is_left(key: str) -> None:
    rows = partners_table(205, 20, 1)
    counts = Counter(rows.column(key).to_pylist())
    assert counts == {**dict.fromkeys(range(10), 20), 10: 5}
    assert rows.column("id").to_pylist() == list(range(205))


def test_ids_and_keys_tell_nothing_of_each_other() -> None:
    rows = partners_table(5000, 50, 1).to_pydict()
    for one, other in (("id", "a"), ("id", "c"), ("a", "c")):
        assert abs(np.corrcoef(rows[one], rows[other])[0, 1]) < 0.08


def test_the_seed_decides() -> None:
    assert partners_table(100, 7, 1).equals(partners_table(100, 7, 1))
    assert not partners_table(100, 7, 1).equals(partners_table(100, 7, 2))


@pytest.mark.parametrize(("rows", "partners"), [(0, 1), (10, 0)])
def test_no_rows_or_no_partners_are_refused(rows: int, partners: int) -> None:
    with pytest.raises(UsageError):
        partners_table(rows, partners, 1)
