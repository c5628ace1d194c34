"""A name that is unknown inside a WITH entry: what it may have meant, the entry itself included."""

from __future__ import annotations

import pytest

from tests.plan.catalogs import refusal
from tests.plan.network import read

BASE = "SELECT dst FROM links WHERE src = 1"
STEP = "SELECT l.dst FROM »{} t JOIN links l ON t.n = l.src"
RECURSIVE = "WITH RECURSIVE"
NEEDED = "An entry that reads itself needs WITH RECURSIVE"

HINTS = [
    (
        f"WITH Reach(n) AS ({BASE} UNION {STEP.format('reach')})",
        "write WITH RECURSIVE: without it `Reach` is unknown inside itself",
    ),
    (
        f"WITH r(n) AS ({BASE} UNION ALL {STEP.format('R')})",
        "write WITH RECURSIVE: without it `r` is unknown inside itself",
    ),
    (
        f"WITH r(n) AS (WITH q AS ({STEP.format('r')}) SELECT * FROM q)",
        "write WITH RECURSIVE: without it `r` is unknown inside itself",
    ),
    (f"{RECURSIVE} r(n) AS ({BASE} UNION {STEP.format('rr')})", "did you mean `r`?"),
    (f"{RECURSIVE} Reach(n) AS ({BASE} UNION {STEP.format('reahc')})", "did you mean `Reach`?"),
    (f"WITH reach(n) AS ({BASE} UNION {STEP.format('reahc')})", f"did you mean `reach`? {NEEDED}"),
    (f"WITH reach(n) AS ({STEP.format('link')})", "did you mean `links`?"),
    (
        f"WITH q AS (SELECT 1), reach(n) AS ({STEP.format('zzz')})",
        "declare it under `tables` in the workload file",
    ),
    # A schema's name is before no WITH entry.
    (
        f"WITH sr(n) AS ({BASE} UNION {STEP.format('s.r')})",
        "declare it under `tables` in the workload file",
    ),
]


@pytest.mark.parametrize(("marked", "hint"), HINTS, ids=[case[0] for case in HINTS])
def test_an_unknown_name_is_told_with_what_it_may_have_meant(marked: str, hint: str) -> None:
    error = refusal(f"{marked} SELECT src FROM links", read)
    assert "is unknown" in error.message
    assert (error.code, error.hint) == ("table_unknown", hint)


def test_a_table_of_that_name_is_read_all_the_same() -> None:
    assert read("WITH links AS (SELECT dst FROM links) SELECT dst FROM links").root
