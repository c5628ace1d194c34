"""The rows of a query on stdout, format by format, and what stderr says of them."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace

import pyarrow as pa
import pytest

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.cli.streams import Stdout
from impctl.service.results import Outcome
from tests.cli.examples import EXAMPLES

SHOWN = {
    "csv": "brand,rev,day,share\nApple,5074.10,2026-01-31,NaN\n,6194.00,,-0.5\n",
    "json": """\
[
{"brand": "Apple", "rev": "5074.10", "day": "2026-01-31", "share": "NaN"},
{"brand": null, "rev": "6194.00", "day": null, "share": -0.5}
]
""",
    "jsonl": """\
{"brand": "Apple", "rev": "5074.10", "day": "2026-01-31", "share": "NaN"}
{"brand": null, "rev": "6194.00", "day": null, "share": -0.5}
""",
    "markdown": """\
| brand | rev | day | share |
| --- | ---: | --- | ---: |
| Apple | 5074.10 | 2026-01-31 | NaN |
| NULL | 6194.00 | NULL | -0.5 |
""",
}
SAID = (
    "q_top: 2 rows, Spark read 2 of 3 files at sales@1 in 120 ms\n"
    "  sketch maintained first (exact): 1 change\n"
)


@pytest.mark.parametrize("name", list(SHOWN))
def test_stdout_has_the_rows_alone(fake, impctl, name: str) -> None:
    fake.answer = Outcome((EXAMPLES["query"],), ("statistics are missing",))
    ran = impctl("query", "w.yaml", "--format", name)
    assert (ran.code, ran.stdout) == (0, SHOWN[name])
    assert ran.stderr == SAID + "warning: statistics are missing\n"
    quiet = impctl("query", "w.yaml", "--format", name, "--quiet")
    assert (quiet.stdout, quiet.stderr) == (SHOWN[name], "")


def test_a_limit_is_told_with_the_number_of_all_rows(fake, impctl) -> None:
    many = pa.table({"n": range(1234), "x": range(1234)}).rename_columns(["n", "n"])
    result = replace(EXAMPLES["query"], answer=many, limit=10)
    fake.answer = Outcome((result,))
    ran = impctl("query", "w.yaml", "--limit", "10", "--format", "csv")
    assert fake.calls[-1][2]["limit"] == 10
    assert ran.stdout.splitlines() == ["n,n", *(f"{n},{n}" for n in range(10))]
    assert ran.stderr.startswith("q_top: 10 of 1,234 rows, Spark read")
    assert len(impctl("query", "w.yaml").stdout.splitlines()) == 12
    (document,) = json.loads(impctl("query", "w.yaml", "--json").stdout)["results"]
    assert document["columns"] == ["n", "n"]
    assert document["rows"] == [[n, n] for n in range(10)]
    assert (document["row_count"], document["limit"], document["written"]) == (1234, 10, None)
    fake.answer = Outcome((replace(result, limit=5000),))
    assert impctl("query", "w.yaml").stderr.startswith("q_top: 1,234 rows, Spark read")


@pytest.mark.parametrize("limit", [3, 2**63, 10**20])
def test_a_limit_beyond_all_rows_shows_all(limit: int) -> None:
    three = replace(EXAMPLES["query"], answer=pa.table({"n": range(3)}), limit=limit)
    assert len(three.shown) == 3


def test_rows_in_a_file_are_not_on_stdout(fake, impctl) -> None:
    result = replace(EXAMPLES["query"], limit=1, written="a.csv")
    fake.answer = Outcome((result,))
    ran = impctl("query", "w.yaml", "--out", "a.csv")
    assert str(fake.calls[-1][2]["out"]) == "a.csv"
    assert ran.stdout == ""
    assert ran.stderr.startswith("q_top: 1 of 2 rows written to a.csv, Spark read 2 of 3 files")
    (document,) = json.loads(impctl("query", "w.yaml", "--json", "--out", "a.csv").stdout)[
        "results"
    ]
    assert (document["rows"], document["row_count"], document["written"]) == ([], 2, "a.csv")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json", "--format", "csv"), "`--json` excludes `--format`"),
        (("--out", "a.csv", "--format", "csv"), "`--out` excludes `--format`"),
        (("--out", "a.xlsx"), "`--out` does not support the file name extension"),
        (("--format", "xml"), "`xml` is not one of `table`, `csv`, `json`,\n  `jsonl`, `markdown`"),
        (("--limit", "-1"), "Invalid value for `--limit`"),
        (("--escape-formulas",), "`--escape-formulas` is for CSV alone"),
        (("--escape-formulas", "--format", "jsonl"), "`--escape-formulas` is for CSV alone"),
        (("--escape-formulas", "--out", "a.jsonl"), "`--escape-formulas` is for CSV alone"),
    ],
)
def test_wishes_that_make_no_sense(fake, impctl, arguments, message: str) -> None:
    ran = impctl("query", "w.yaml", *arguments)
    assert ran.code == 2
    assert message in ran.stderr + ran.stdout
    assert fake.calls == []


def test_the_endings_are_listed(fake, impctl) -> None:
    assert ".parquet, .csv or .jsonl" in impctl("query", "w.yaml", "--out", "a.xlsx").stderr


@pytest.mark.parametrize("name", ["csv", "json", "jsonl", "markdown"])
def test_what_programs_read_is_utf_8_whatever_the_locale(fake, monkeypatch, name: str) -> None:
    fake.answer = Outcome((replace(EXAMPLES["query"], answer=pa.table({"a": ["ü\x1b"]})),))
    kept = io.BytesIO()
    stdout = io.TextIOWrapper(kept, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(build_app(), ["query", "w.yaml", "--format", name]) == 0
    stdout.flush()
    shown = kept.getvalue().decode()
    assert "ü" in shown
    assert ("\x1b" in shown) is (name == "csv")


@pytest.mark.parametrize("command", ["query", "changes", "without"])
def test_formulas_are_escaped_where_that_is_asked_for(fake, impctl, command: str) -> None:
    fake.answer = Outcome(
        (replace(EXAMPLES[command], answer=pa.table({"=a": ["+1"], "_change": ["x"]})),)
    )
    name = ("why", "w.yaml", "--without", "g = 1") if command == "without" else (command, "w.yaml")
    words = (*name, "--format", "csv")
    assert impctl(*words).stdout == "=a,_change\n+1,x\n"
    assert impctl(*words, "--escape-formulas").stdout == "'=a,_change\n'+1,x\n"


def test_a_value_drives_no_terminal(fake, monkeypatch) -> None:
    fake.answer = Outcome((replace(EXAMPLES["query"], answer=pa.table({"a": ["ü\x1b[2J"]})),))
    stdout = io.StringIO()
    monkeypatch.setattr(stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run(build_app(), ["query", "w.yaml", "--format", "csv"]) == 0
    assert stdout.getvalue() == "a\nü\\x1b[2J\n"


@pytest.mark.parametrize("name", ["table", *SHOWN])
def test_a_reader_that_went_away_is_no_failure(fake, capfd, monkeypatch, name: str) -> None:
    fake.answer = Outcome((replace(EXAMPLES["query"], answer=pa.table({"a": ["x" * 99_999]})),))
    reader, writer = os.pipe()
    os.close(reader)
    with Stdout(os.fdopen(writer, "wb"), encoding="utf-8") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        assert run(build_app(), ["query", "w.yaml", "--format", name]) == 0
    assert "rror" not in capfd.readouterr().err
