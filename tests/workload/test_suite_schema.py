"""The JSON Schema of suites agrees with the reader, and the shipped suites satisfy both."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from impctl.errors import WorkloadError
from impctl.workload.suite_schema import suite_json_schema
from impctl.workload.suites import load_suite

from .test_json_schema import accepts, change
from .test_suites import SUITE, WORDS

DOCUMENT = yaml.safe_load(SUITE)
ROOT = Path(__file__).resolve().parents[2]
SHIPPED = sorted((ROOT / "workloads" / "bench").glob("*.yaml"))


def test_suites_are_shipped() -> None:
    assert {"crimes", "micro", "tpch"} <= {path.stem for path in SHIPPED}


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_suite_satisfies_the_schema_and_says_what_it_is(path: Path) -> None:
    from impctl.app.measuring.plan import VOCABULARY

    text = path.read_text(encoding="utf-8")
    assert text.startswith("# "), "a comment says what it measures"
    assert accepts(suite_json_schema(VOCABULARY), yaml.safe_load(text))
    suite = load_suite(path, {}, Path("data"), VOCABULARY)
    assert suite.name == path.stem
    for figure in suite.figures:
        assert not figure.claim or figure.source, "a claim has a source"


@pytest.mark.parametrize(
    ("path", "value", "is_fine"),
    [
        ("scale", 2, True),
        ("scale", 0, False),
        ("scale", "${SCALE:-2}", True),
        ("repeat", 0, False),
        ("data/t/groups", [1, 2], True),
        ("data/t/groups", None, False),
        ("data/t/groups", [], False),
        ("data/t/example", "other", False),
        ("data/t/rows", 1.5, False),
        ("data", {}, True),
        ("figures", {}, False),
        ("figures/first/measure", "other", False),
        ("figures/first/with", {}, True),
        ("figures/first/with", {"a": {}}, False),
        ("figures/first/cases", [], False),
        ("figures/first/cases", [{"query": "q", "a": True}], False),
        ("figures/first/chart/log", ["z"], False),
        ("figures/first/chart/y", [], False),
        ("figures/first/full", {}, True),
        ("figures/first/full", {"with": {"a": 1}, "cases": [{"query": "q", "z": 1}]}, True),
        ("figures/first/full", {"with": {"a": {}}}, False),
        ("figures/first/full", {"cases": []}, False),
        ("figures/first/full", {"measure": "query"}, False),
        ("figures/first/extra", 1, False),
        ("workload/version", 1, False),
        ("workload/store", "x", True),
    ],
)
def test_schema_and_reader_agree(tmp_path: Path, path: str, value: Any, is_fine: bool) -> None:
    document = change(deepcopy(DOCUMENT), path, value)
    assert accepts(suite_json_schema(WORDS), document) is is_fine
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump(document))
    try:
        load_suite(file, {}, tmp_path, WORDS)
    except WorkloadError:
        assert not is_fine
    else:
        assert is_fine
