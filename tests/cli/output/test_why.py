"""Why a row is in an answer, as text: rows on stdout, what was read on stderr."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impctl.app.results.results import Outcome
from tests.cli.examples import EXAMPLES

WHY = EXAMPLES["why"]


def test_the_rows_and_what_is_proved_of_them(fake, impctl) -> None:
    fake.answer = Outcome((WHY,))
    ran = impctl("why", "w.yaml", "--row", "n=17")
    assert ran.stdout == (
        "reach: n=17, at=2026-01-31T12:00:00, name=NULL is derived from 3 rows, a smallest set: no "
        "fewer rows derive it\n"
        "  links: src=1, dst=4, cost=1.50\n"
        "  links: src=4, dst=17, cost=NULL\n"
        "  ... and 1 row more\n"
    )
    assert " ".join(ran.stderr.split()) == (
        "reach: 12 rows take part in any derivation of it; the engine read 1 of 4 files at "
        "links@3 in 12 ms"
    )


def test_one_row_takes_part(fake, impctl) -> None:
    fake.answer = Outcome((replace(WHY, lineage=1),))
    ran = impctl("why", "w.yaml", "--row", "n=17")
    assert "1 row takes part in any derivation of it" in " ".join(ran.stderr.split())


@pytest.mark.parametrize(
    ("claim", "said"),
    [("minimal", "no part of these rows derives it"), ("group", "all rows of the groups")],
)
def test_nothing_is_said_to_be_smallest_that_is_not(fake, impctl, claim: str, said: str) -> None:
    fake.answer = Outcome((replace(WHY, claim=claim),))
    ran = impctl("why", "w.yaml", "--row", "n=17")
    assert said in ran.stdout
    assert "smallest" not in ran.stdout


def test_what_would_go_and_come(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["without"],))
    ran = impctl("why", "w.yaml", "--without", "links: src = 4", "--format", "csv")
    assert ran.stdout == "_change,_copies,n\ndelete,1,17\ninsert,2,\n"
    assert " ".join(ran.stderr.split()) == (
        "reach: without 2 rows of links, 1 row of the answer would go, 1 row would come; the "
        "engine read 1 of 4 files at links@3 in 12 ms"
    )


def test_a_format_is_for_rows_that_would_go(fake, impctl) -> None:
    ran = impctl("why", "w.yaml", "--row", "n=17", "--format", "csv")
    assert ran.code == 2
    assert "`--format` goes with `--without` only" in ran.stderr
