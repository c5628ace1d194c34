"""Exactly one strict JSON document on stdout, whatever happens."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from impctl.cli.output.json import to_json
from impctl.errors import (
    HistoryGoneError,
    Location,
    LockHeldError,
    PolicyRefusedError,
    Problem,
    QueryError,
    WorkloadError,
)
from impctl.service.results import Failure, Outcome, RecordKind
from tests.cli.examples import EXAMPLES

KEYS = ["schema_version", "command", "ok", "results", "warnings", "error"]


def strict(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", list(EXAMPLES))
def test_every_result_in_the_envelope(fake, impctl, name: str) -> None:
    fake.answer = Outcome((EXAMPLES[name],), ("a warning",))
    words = {
        "apply": ["apply", "w.yaml", "s8"],
        "generate": ["bench", "--generate", "demo"],
        "record": ["bench", "w.yaml"],
        "comparison": ["bench", "--compare", "a.json", "b.json"],
        "written": ["bench", "r.json", "--report", "r.html"],
        "finding": ["doctor"],
        "started": ["init", "--demo"],
        "due": ["plan", "w.yaml", "--due"],
        "why": ["why", "w.yaml", "--row", "n=17"],
        "without": ["why", "w.yaml", "--without", "links: src = 4"],
    }.get(name, [name, "w.yaml"])
    ran = impctl(*words, "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (0, "")
    assert list(document) == KEYS
    assert document["schema_version"] == 1
    assert document["command"] == words[0]
    assert document["ok"] is True
    assert document["warnings"] == ["a warning"]
    assert document["error"] is None
    assert document["results"] == [to_json(EXAMPLES[name])]


def test_the_fields_that_the_design_names(fake, impctl) -> None:
    def entry(name: str) -> dict:
        fake.answer = Outcome((EXAMPLES[name],))
        return strict(impctl(name, "w.yaml", "--json").stdout)["results"][0]

    status = entry("status")
    assert status["query"] == "q_top"
    assert status["sketches"] == [
        {"table": "sales", "attribute": "price", "fragments": [1, 2, 3, 4], "total": 4}
    ]
    assert status["versions"] == {"sales": 1}
    assert status["stale"] is True
    assert {
        "query",
        "action",
        "reason",
        "versions",
        "added",
        "removed",
        "changes",
        "elapsed_ms",
    } <= set(entry("maintain"))
    assert {"query", "covers", "slack", "results_equal"} <= set(entry("verify"))
    fake.answer = Outcome((replace(EXAMPLES["record"], kind=RecordKind.WORKLOAD),))
    record = strict(impctl("bench", "w.yaml", "--json").stdout)["results"][0]
    assert (record["kind"], record["suite"]) == ("workload", "micro")
    cell = record["cells"][0]
    assert {"maintain_ms", "recapture_ms", "recapture_ratio"} <= set(cell["metrics"])
    assert (cell["covers"], cell["slack"], cell["labels"]["changes"]) == (True, 0, 1000)


def test_values_of_a_query(fake, impctl) -> None:
    fake.answer = Outcome((EXAMPLES["query"],))
    result = strict(impctl("query", "w.yaml", "--json").stdout)["results"][0]
    assert result["columns"] == ["brand", "rev", "day", "share"]
    assert result["rows"] == [
        ["Apple", "5074.10", "2026-01-31", "NaN"],
        [None, "6194.00", None, -0.5],
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (Decimal("1E+3"), "1000"),
        (2**63, 2**63),
        (True, True),
        (b"\x00\xff", "00ff"),
        (datetime(2026, 1, 31, 12, 0, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
        ({1: (2, None)}, {"1": [2, None]}),
    ],
)
def test_one_value(value: object, expected: object) -> None:
    assert to_json(value) == expected


def test_a_value_of_unknown_type_is_an_error() -> None:
    with pytest.raises(TypeError, match="complex"):
        to_json(1j)


def test_text_that_is_no_text_still_gives_a_document(fake, impctl) -> None:
    fake.answer = Outcome((replace(EXAMPLES["apply"], name="\ud800 ü"),))
    assert strict(impctl("apply", "w.yaml", "s8", "--json").stdout)["ok"] is True


def test_one_failure_beside_good_results(fake, impctl) -> None:
    error = QueryError("Unknown column `x`", location=Location("w.yaml", 9, 14), hint="see tables")
    fake.answer = Outcome((EXAMPLES["maintain"],), (), (Failure("q_two", error),))
    ran = impctl("maintain", "w.yaml", "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (3, "")
    assert document["ok"] is False
    assert len(document["results"]) == 1
    assert document["error"] == {
        "code": "query_unsupported",
        "message": "Unknown column `x`",
        "hint": "see tables",
        "location": {"file": "w.yaml", "line": 9, "column": 14},
        "query": "q_two",
    }


def test_several_failures_are_all_there_and_the_gravest_decides(fake, impctl) -> None:
    failures = (
        Failure("a", LockHeldError("locked")),
        Failure("b", HistoryGoneError("gone")),
        Failure("c", PolicyRefusedError("refused")),
    )
    fake.answer = Outcome(failures=failures)
    ran = impctl("maintain", "w.yaml", "--json")
    error = strict(ran.stdout)["error"]
    assert ran.code == 4
    assert error["code"] == "policy_refused"
    assert [entry["query"] for entry in error["failures"]] == ["a", "b", "c"]


def test_every_problem_of_a_workload_file(fake, impctl) -> None:
    problems = [Problem("one", Location("w.yaml", 1, 2), "do this"), Problem("two")]
    fake.answer = WorkloadError("File `w.yaml` has 2 problems", problems)
    ran = impctl("check", "w.yaml", "--json")
    error = strict(ran.stdout)["error"]
    assert ran.code == 2
    assert error["code"] == "workload_invalid"
    assert error["problems"] == [
        {
            "message": "one",
            "hint": "do this",
            "location": {"file": "w.yaml", "line": 1, "column": 2},
        },
        {"message": "two", "hint": None, "location": None},
    ]


def test_the_schema_is_a_document_of_its_own_or_a_result(fake, impctl) -> None:
    fake.answer = '{"type": "object"}'
    assert impctl("check", "--schema").stdout == '{"type": "object"}\n'
    assert strict(impctl("check", "--schema", "--json").stdout)["results"] == [{"type": "object"}]


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["captur", "w.yaml"], "captur"),
        (["completion"], "completion"),
        (["status", "w.yaml", "--nope"], "status"),
        (["maintain", "w.yaml", "--policy", "never"], "maintain"),
        (["apply", "w.yaml"], "apply"),
        (["status", "w.yaml", "-q", "-v"], "status"),
        ([], None),
    ],
)
def test_usage_errors_are_documents_too(fake, impctl, words: list[str], command) -> None:
    ran = impctl(*words, "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (2, "")
    assert document["ok"] is False
    assert document["command"] == command
    assert document["error"]["code"] == "usage"
    assert fake.calls == []


@pytest.mark.parametrize(
    ("raised", "code", "name"),
    [
        (ValueError("boom\nsecond line"), 1, "unexpected"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (BrokenPipeError(32, "of the Spark session"), 1, "unexpected"),
        (OSError(28, "No space left on device"), 1, "unexpected"),
    ],
)
def test_anything_else_is_a_document_too(fake, impctl, raised, code: int, name: str) -> None:
    fake.answer = raised
    ran = impctl("maintain", "w.yaml", "--json")
    document = strict(ran.stdout)
    assert (ran.code, ran.stderr) == (code, "")
    assert document["error"]["code"] == name
    assert "\n" not in document["error"]["message"]
