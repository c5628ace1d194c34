"""Messages behind a query's name: nothing is named twice, nothing is lost."""

from __future__ import annotations

import pytest

from impctl.app.results.subject import named_before


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("Query `q` uses UNPIVOT", "it uses UNPIVOT"),
        ("Query `q.r` uses UNPIVOT", "Query `q.r` uses UNPIVOT"),
        ("Query `qr` uses UNPIVOT", "Query `qr` uses UNPIVOT"),
        ("The SQL of query `q` cannot be read", "its SQL cannot be read"),
        (
            "A sketch of `t.a` is not safe for query `q`: x",
            "A sketch of `t.a` is not safe for the query: x",
        ),
        ("Table `q` is gone", "Table `q` is gone"),
    ],
)
def test_the_query_is_named_once(message: str, told: str) -> None:
    assert named_before("q", message) == told
