"""`provenance` of a query: read as written, refused beside what excludes it, and in the schema."""

from __future__ import annotations

import pytest
import yaml

from impctl.engine.fixpoint import absorption
from impctl.workload.models import ProvenanceSpec, Ship
from impctl.workload.schema import workload_json_schema
from tests.workload.conftest import Load, Problems
from tests.workload.test_json_schema import accepts

HEAD = "version: 1\ntables: {t: {path: a}}\n"
READ = {
    "absorption": ProvenanceSpec(Ship.LAZY, 5_000_000),
    "{kind: absorption}": ProvenanceSpec(Ship.LAZY, 5_000_000),
    "{kind: absorption, ship: lazy, nodes: 7}": ProvenanceSpec(Ship.LAZY, 7),
    "{kind: absorption, ship: eager}": ProvenanceSpec(Ship.EAGER, 5_000_000),
}
WRONG = {
    "ranks": "must be one of `absorption`",
    "true": "provenance` must be text",
    "{ship: lazy}": "kind",
    "{kind: why}": "must be one of `absorption`",
    "{kind: absorption, ship: slow}": "must be one of `lazy`, `eager`",
    "{kind: absorption, nodes: 0}": "must be from 1 to",
    "{kind: absorption, nodes: many}": "whole number",
    "{kind: absorption, size: 3}": "size",
}


def text(provenance: str, rest: str = "") -> str:
    return f"{HEAD}queries: {{a: {{sql: SELECT 1, provenance: {provenance}{rest}}}}}\n"


@pytest.mark.parametrize("written", READ)
def test_it_is_read_as_written(load: Load, written: str) -> None:
    assert load(text(written)).queries["a"].provenance == READ[written]
    assert accepts(workload_json_schema(), yaml.safe_load(text(written)))


def test_without_it_there_is_none(load: Load) -> None:
    assert load(f"{HEAD}queries: {{a: {{sql: SELECT 1}}}}\n").queries["a"].provenance is None


@pytest.mark.parametrize("written", WRONG)
def test_what_is_wrong_is_named(problems: Problems, written: str) -> None:
    (told,) = problems(text(written))
    assert WRONG[written] in told
    assert not accepts(workload_json_schema(), yaml.safe_load(text(written)))


@pytest.mark.parametrize("rest", ["sketch: none", "lineage: witness"])
def test_what_excludes_it_is_named(problems: Problems, rest: str) -> None:
    (told,) = problems(text("absorption", f", {rest}"))
    assert f"cannot be combined with `{rest}`" in told


def test_by_default_are_witnesses_and_it_is_asked_for(load: Load, problems: Problems) -> None:
    defaults = "defaults: {lineage: witness}\n"
    (told,) = problems(text("absorption").replace("queries", f"{defaults}queries", 1))
    assert "write `lineage: all`" in told
    both = text("absorption", ", lineage: all").replace("queries", f"{defaults}queries", 1)
    assert load(both).queries["a"].provenance is not None


def test_it_is_nothing_for_all_queries(problems: Problems) -> None:
    (told,) = problems(
        f"{HEAD}defaults: {{provenance: absorption}}\nqueries: {{a: {{sql: SELECT 1}}}}\n"
    )
    assert "provenance" in told


def test_words_and_numbers_are_those_of_the_engine() -> None:
    assert list(map(str, Ship)) == list(map(str, absorption.Ship))
    assert ProvenanceSpec().nodes == absorption.Absorbs().nodes == absorption.NODES
    assert ProvenanceSpec().ship == absorption.Absorbs().ship
