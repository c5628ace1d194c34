"""Prepared queries: safe plans, assumptions, estimates and stored metadata."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.data.schema import INTEGER, LONG
from impctl.errors import AssumptionBrokenError, Location, StateCorruptError
from impctl.plan.nodes import Query
from impctl.rules.optimize import apply_rules, core_of
from impctl.safety.facts import Fact, FactKind, FactSource
from impctl.service import capture_plan, estimate
from impctl.service.estimate import DrawnGroups, FilesLeft, drawn_groups
from impctl.service.filters import groups_of, united_groups
from impctl.service.prepare import (
    PreparedQuery,
    QuerySource,
    assumption_of,
    assumption_text,
    columns_assumed,
    recheck,
)
from impctl.service.stored import RangeDepth, StateMeta
from impctl.sketch.boundaries import Mixture
from impctl.sketch.sketch import RangePartition, RangeSet
from impctl.sql.parameters import BoundSql
from impctl.store.records import Assumption, StoredSketch, TablePin
from impctl.tables.changes import read_changes
from impctl.tables.rows import read_rows
from impctl.tables.sample import file_sample
from impctl.tables.snapshot import FilesMark, Snapshot, ValueBounds
from impctl.tables.source import open_source
from impctl.tables.statistics import FileSpans, file_bounds, file_spans
from impctl.tables.write.maintenance import create_laid_out_table, create_table
from impctl.workload.models import JoinStrategy, MaintainMode, Policy, QuerySpec, SqlOrigin
from tests.plan.catalogs import read_net
from tests.reuse.trials import ReuseTally, run_reuse_trial
from tests.support.run_cli import Cli, CliOf, CliOnce, MonkeyPatch, write_files
from tests.tables.handmade import column_bounds

WORKLOAD = """\
version: 1
tables: {t: {path: t}, u: {path: u}}
partitions: {t: {g: {boundaries: [2, 3]}}}
queries:
  q:
    sql: >-
      SELECT q.g, q.m, u.y
      FROM (SELECT g, upper(max_by(s, p)) m, min(p) a FROM t GROUP BY g) q
      LEFT JOIN u ON q.m < u.s WHERE q.a > 1
store: .impctl
"""


ROWS_OF_T = {"g": [1, 1, 2], "h": [1, 1, 2], "p": [1, 5, 3], "s": ["a", "b", "c"]}
U = pa.table({"s": ["b", "z"], "y": [1, 2]})


def test_order_dependent_query_is_refused(cli_of: CliOf) -> None:
    ran = cli_of(WORKLOAD, t=pa.table(ROWS_OF_T), u=U)("capture", "--dry-run")
    assert ran.refusal == (3, "sketch_unsafe")
    assert "depends on the order of rows" in ran.error["message"]


def test_order_dependent_sketch_is_not_reused() -> None:
    tally = ReuseTally()
    run_reuse_trial(33_034_575, tally)
    (reason,) = tally.refusals
    assert reason.startswith("the contents of a sketch cannot be determined")


def test_another_attribute_is_tried(cli_of: CliOf) -> None:
    """`h` is also a group key, and the join reads it, so it is part of the core."""
    cli = cli_of(WORKLOAD, t=pa.table(ROWS_OF_T), u=U)
    for before, after in {
        "{g: {boundaries: [2, 3]}}": "{g: {boundaries: [2]}, h: {boundaries: [2]}}",
        "SELECT q.g,": "SELECT q.g, q.h,",
        "SELECT g,": "SELECT g, h,",
        "GROUP BY g": "GROUP BY g, h",
        "q.m < u.s": "q.m < u.s AND q.h = u.y",
    }.items():
        cli.edit(before, after)
    assert [s["attribute"] for s in cli.one("capture", "--dry-run")["sketches"]] == ["h"]
    attributes = {c["attribute"]: c for c in cli.one("explain")["attributes"]}
    assert attributes["g"]["reason"].startswith("the contents of a sketch cannot be determined"), (
        attributes
    )


ENTRY = (
    "WITH RECURSIVE r(t, n) AS (SELECT cost, dst FROM links WHERE src = 1 UNION "
    "SELECT r.t, l.dst FROM r JOIN links l ON r.n = l.src{}) "
)
KEYED = ENTRY.format(" AND r.t = l.cost")
FEW = "SELECT t, COUNT(*) FROM r GROUP BY t HAVING COUNT(*) <= 1"
BOTH = frozenset({"links#1", "links#2"})
Ids = Mapping[str, tuple[int, ...]]
"""Ranges by access."""


def _prepared(sql: str) -> PreparedQuery:
    query, location = read_net(sql), Location("w.yaml", 1, 1)
    modes = {"policy": Policy.AUTO, "maintain": MaintainMode.LAZY, "join": JoinStrategy.AUTO}
    locations = {"location": location, "sql_origin": SqlOrigin(location, (), ())}
    spec = QuerySpec(name="q", sql="", sketch={}, **modes, **locations)
    planned = Query(query.sql, apply_rules(query.root))
    bound = BoundSql(sql)
    source = QuerySource(spec, bound=bound)
    return PreparedQuery(spec, bound, query, planned, core_of(query.root), source)


def _stored(access: str, ids: Sequence[int], boundaries: tuple[int, ...] = (1, 2)) -> StoredSketch:
    partition = RangePartition("links", "cost", INTEGER, boundaries)
    ranges = RangeSet.of(ids, partition.size)
    return StoredSketch(access, "links", "cost", partition, ranges)


FIRST, SECOND = "links#1", "links#2"
TWO = {FIRST: (0, 1), SECOND: (1, 3)}
NO_FIXPOINT = "SELECT a.dst FROM links a JOIN links b ON a.src = b.dst"
UNITED_CASES: list[tuple[str, Ids, set[frozenset[str]], Ids]] = [
    # Also if not keyed: sketches captured with a barrier by another build are larger, not wrong.
    *(
        (KEYED + above, TWO, {BOTH}, dict.fromkeys(TWO, (0, 1, 3)))
        for above in (FEW, "SELECT t, n FROM r", "SELECT AVG(n) FROM r")
    ),
    (KEYED + FEW, dict.fromkeys(TWO, (0, 1)), {BOTH}, dict.fromkeys(TWO, (0, 1))),
    # Other sketches stay as they are, and a base alone is a group of one.
    *((sql, TWO, set(), TWO) for sql in (ENTRY.format("") + FEW, NO_FIXPOINT)),
    (KEYED + FEW, {FIRST: (0, 1)}, {frozenset({FIRST})}, {FIRST: (0, 1)}),
]


@pytest.mark.parametrize(("sql", "ranges", "groups", "united"), UNITED_CASES)
def test_sketches_of_a_keyed_fixpoint_are_united(
    sql: str, ranges: Ids, groups: set[frozenset[str]], united: Ids
) -> None:
    prepared, sketches = _prepared(sql), [_stored(access, ids) for access, ids in ranges.items()]
    assert groups_of(prepared, sketches) == groups
    result = united_groups(prepared, sketches)
    assert {sketch.access: sketch.ranges.ids for sketch in result} == united
    assert united != ranges or [*result] == sketches


def test_sketches_with_different_partitions_are_not_united() -> None:
    sketches = [_stored(FIRST, (0,)), _stored(SECOND, (0,), (1, 2, 3))]
    assert united_groups(_prepared(KEYED + FEW), sketches) == ()


SCHEMA = pa.schema(
    {"i": pa.int64(), "d": pa.float64(), "m": pa.decimal128(38, 2), "s": pa.string()}
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    create_table(str(tmp_path / "t"), pa.table([[1], [1.0], [1], ["x"]], schema=SCHEMA))
    return str(tmp_path / "t")


@pytest.fixture
def snapshot(path: str) -> Snapshot:
    return open_source("t", path).snapshot(0)


def assumption(column: str, kind: FactKind, table: str = "t") -> Assumption:
    return assumption_of(Fact(table, column, kind, FactSource.STATISTICS))


def recheck_rows(snapshot: Snapshot, fact: Assumption, rows: list[tuple[Any, int]]) -> None:
    name = fact.column
    table = pa.table({name: pa.array([value for value, _ in rows], SCHEMA.field(name).type)})
    recheck([fact], snapshot, table, np.array([w for _, w in rows], dtype=np.int64))


NONNEGATIVE, NONPOSITIVE = FactKind.NONNEGATIVE, FactKind.NONPOSITIVE
NOT_NULL, NAN_FREE = FactKind.NOT_NULL, FactKind.NAN_FREE
CASES: list[tuple[str, FactKind, list[Any], list[Any]]] = [
    ("i", NONNEGATIVE, [0, 5, None, 2**63 - 1], [-1, -(2**63)]),
    ("d", NONNEGATIVE, [0.0, -0.0, None, math.inf, math.nan], [-5e-324, -math.inf]),
    ("m", NONNEGATIVE, [0, None, 10**30], [-1, -(10**30)]),
    ("i", NONPOSITIVE, [0, -5, None], [1, 2**63 - 1]),
    ("d", NONPOSITIVE, [0.0, -0.0, None, -math.inf], [5e-324, math.inf, math.nan]),
    ("m", NONPOSITIVE, [0, None, -(10**30)], [1, 10**30]),
    ("i", NOT_NULL, [0, -1], [None]),
    ("d", NOT_NULL, [0.0, math.nan], [None]),
    ("s", NOT_NULL, ["", "x"], [None]),
    ("d", NAN_FREE, [0.0, math.inf, None], [math.nan]),
]


@pytest.mark.parametrize(("column", "kind", "good", "bad"), CASES)
def test_only_inserted_rows_break_assumptions(
    snapshot: Snapshot, column: str, kind: FactKind, good: list[Any], bad: list[Any]
) -> None:
    fact = assumption(column, kind)
    inserted = [(value, 1) for value in good]
    for rows in ([], inserted, [*((value, -1) for value in bad), *inserted]):
        recheck_rows(snapshot, fact, rows)
    for value in bad:
        with pytest.raises(AssumptionBrokenError, match=f"`t.{column}` (>= 0|<= 0|has no)"):
            recheck_rows(snapshot, fact, [*inserted, (value, 1)])


def test_assumptions_of_other_tables_are_ignored(snapshot: Snapshot) -> None:
    recheck_rows(snapshot, assumption("i", NONNEGATIVE, table="u"), [(-1, 1)])


def test_all_assumptions_are_checked(snapshot: Snapshot) -> None:
    rows = pa.table({"i": pa.array([1]), "d": pa.array([None], pa.float64())})
    facts = [assumption("i", NONNEGATIVE), assumption("i", NOT_NULL), assumption("d", NOT_NULL)]
    recheck(facts[:2], snapshot, rows, np.array([1]))
    with pytest.raises(AssumptionBrokenError, match="`t.d` has no NULL"):
        recheck(facts, snapshot, rows, np.array([1]))


def test_changes_of_a_real_table_are_checked(path: str) -> None:
    """An update's old row is a deletion, so only the new row is checked."""
    write_deltalake(path, pa.table([[-3], [0.0], [0], ["y"]], schema=SCHEMA), mode="append")
    DeltaTable(path).update(updates={"i": "3"}, predicate="i = -3")
    source = open_source("t", path)
    facts = [assumption("i", NONNEGATIVE)]
    repaired = read_changes(source, 1, 2, ["i"])
    assert sorted(repaired.table.column("i").to_pylist()) == [-3, 3]
    recheck(facts, source.snapshot(2), repaired.table, repaired.weights)
    broken = read_changes(source, 0, 1, ["i"])
    with pytest.raises(AssumptionBrokenError):
        recheck(facts, source.snapshot(1), broken.table, broken.weights)


def test_assumption_columns_and_text() -> None:
    facts = [assumption("d", NONNEGATIVE), assumption("i", NOT_NULL), assumption("d", NAN_FREE)]
    facts.append(assumption("x", NOT_NULL, table="u"))
    assert columns_assumed(facts, "t") == ("d", "i")
    assert columns_assumed(facts, "v") == ()
    assert assumption_text(facts[0]) == "`t.d` >= 0"


META = StateMeta(
    way="every operator is maintained incrementally",
    circuit="c",
    answer=True,
    template="t",
    moments={"now": "2026-01-01"},
    marks={"t": "m"},
    files={"t": FilesMark("ab", 3), "u": FilesMark("cd", None)},
    counters={"n": 4},
    unsure=2,
    distant=("join0.left",),
    from_files=("join0.right",),
    read_rows={"join0.right": 7},
    side_reasons={"join0.right": "no change needs it"},
    depths=(RangeDepth("t", "a", 4, 10, 5, 1.5), RangeDepth("t", "b", 4, 10, 5, 0)),
    ending=("mark", ["tuple"]),
    trees="0f",
    provenance="lazy",
)
MARK = {"digest": "ab", "rows": 3}
DEPTH = {"table": "t", "attribute": "a", "ranges": 4, "rows": 10, "largest": 5, "at_capture": 1.5}


def read_meta(stored: dict[str, Any]) -> StateMeta:
    return StateMeta.read("q", json.loads(json.dumps(stored)))


def test_metadata_round_trips() -> None:
    assert read_meta(META.as_stored()) == META
    minimal = StateMeta(way="w", circuit="c")
    assert read_meta({"way": "w", "circuit": "c"}).as_stored() == minimal.as_stored()
    assert type(read_meta(META.as_stored()).depths[1].at_capture) is float
    # Cached states are compared with states loaded from the store.
    assert json.loads(json.dumps(META.as_stored())) == META.as_stored()


INVALID: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("unknown",): (1,),
    ("way", "circuit", "template", "provenance"): (None, 1, ["w"]),
    ("answer",): (None, 1, 0, "true"),
    ("moments", "marks"): (None, [], "x", {"t": 1}, {"t": None}),
    ("files",): (
        *(None, [], {"t": None}, {"t": "ab"}, {"t": {"digest": "ab"}}),
        *({"t": {**MARK, "rows": rows}} for rows in (1.0, True, "3")),
        *({"t": mark} for mark in ({**MARK, "digest": 1}, {**MARK, "more": 1})),
    ),
    ("counters",): (None, [], {"n": -1}, {"n": 1.0}, {"n": True}),
    ("unsure",): (None, -1, 1.5, "1", True),
    ("ending",): (None, "u", ["mark"], [1, []], ["mark", [], 1]),
    ("distant",): (None, "u", {"u": 1}, [1], [None]),
    ("depths",): (
        *(None, {}, [None], [{}], [[]], [{**DEPTH, "more": 1}]),
        *([{**DEPTH, name: None}] for name in DEPTH),
        *([{**DEPTH, "at_capture": v}] for v in ("1", True, float("nan"))),
        *([{**DEPTH, "rows": value}] for value in (1.0, "1", True)),
    ),
}


@pytest.mark.parametrize(
    ("name", "value"), [(n, v) for names, values in INVALID.items() for n in names for v in values]
)
def test_invalid_metadata_is_corrupt(name: str, value: Any) -> None:
    with pytest.raises(StateCorruptError, match="query `q`"):
        read_meta({**META.as_stored(), name: value})


@pytest.mark.parametrize("name", ["way", "circuit"])
def test_required_metadata_is_checked(name: str) -> None:
    stored = META.as_stored()
    del stored[name]
    with pytest.raises(StateCorruptError):
        read_meta(stored)


def test_basis_has_metadata_and_schemas_of_marked_files() -> None:
    pins = [TablePin(t, f"/{t}", f"id-{t}", 1, '{"fields": []}') for t in ("t", "v")]
    basis, stored = META.basis(pins), META.as_stored()
    assert set(basis.pop("schemas")) == {"t"}
    names = ("circuit", "answer", "template", "moments", "marks", "files")
    assert basis == {name: stored[name] for name in names}


FILES, RANGES = 50, 200


@pytest.fixture
def spans() -> FileSpans:
    """Four ranges per file, each with ten values."""
    files = [ValueBounds(40 * index, 40 * index + 39, 0, 100) for index in range(FILES)]
    partition = RangePartition("t", "c", LONG, tuple(range(10, 2000, 10)))
    return file_spans(partition, column_bounds(files, LONG))


def mixture(chances: np.ndarray) -> Mixture:
    return Mixture(np.ones((1, RANGES + 1)), np.append(chances, 0.0)[None])


def files_left(spans: FileSpans, chances: np.ndarray, most_together: int) -> FilesLeft:
    result = mixture(chances)
    ends = [result, mixture(chances / 2), mixture(np.minimum(chances * 2, 1.0))]
    return FilesLeft.of(spans, ends, 0.01, most_together)


def test_ranges_are_merged_if_no_more_files_are_read(spans: FileSpans) -> None:
    third = (np.arange(RANGES) // 4 % 3 == 0).astype(np.float64)
    result = files_left(spans, third, 100)
    assert result.likely.sum() == 17
    assert result.together == 4, "one range per file; with two, both files would be read"
    assert files_left(spans, third, 2).together == 2
    assert files_left(spans, third, 1).together == 1
    assert files_left(spans, np.ones(RANGES), 100).together == 64


def test_estimates_have_bounds(spans: FileSpans) -> None:
    result = files_left(spans, np.full(RANGES, 0.1), 1)
    likely, fewest, most = result.between()
    assert likely == pytest.approx(FILES * (1 - 0.9**4))
    assert 0 <= fewest < FILES * (1 - 0.95**4) < likely < FILES * (1 - 0.8**4) < most
    everything = FilesLeft.all_of(FILES)
    assert everything.between() == (FILES, FILES, FILES)


def test_at_least_raises_file_probabilities(spans: FileSpans) -> None:
    at_least = files_left(spans, np.zeros(RANGES), 1).at_least(np.full(FILES, 0.5))
    assert (at_least.likely.sum(), at_least.low.sum()) == (FILES / 2, 0)


def test_ten_percent_more_bytes_are_as_good(spans: FileSpans) -> None:
    half = files_left(spans, np.repeat([1.0, 0.0], RANGES // 2), 1)
    sizes = np.where(np.arange(FILES) < FILES // 2, 1.0, 1000.0)
    assert half.is_as_good_as(half.likely / 1.05, sizes)
    assert not half.is_as_good_as(half.likely / 1.2, sizes)
    assert half.is_as_good_as(1.0 - half.likely, sizes), "large files count more"


ROWS, FILE_COUNT = 40_000, 40


@pytest.fixture
def small_tables_are_estimated(monkeypatch: MonkeyPatch) -> None:
    for module in (estimate, capture_plan):
        monkeypatch.setattr(module, "LEAST_ROWS", 1_000)


@pytest.fixture
def cli(cli_once: CliOnce, small_tables_are_estimated: None) -> Cli:
    """Groups of 100 rows, clustered by file; 400 rows per hour."""

    def write(folder: Path) -> None:
        index, step = np.arange(ROWS), ROWS // FILE_COUNT
        price = np.where(index >= ROWS * 9 // 10, 3, 1)
        rows = pa.table({"key": index // 100, "hour": index // 400, "price": price, "id": index})
        parts = (rows.slice(start, step) for start in range(0, ROWS, step))
        create_laid_out_table(str(folder / "t"), parts)
        sql = "SELECT key, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 200"
        text = f"version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: '{sql}'}}}}\n"
        write_files(folder, text)

    return cli_once("estimated", write)


def safe(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["attribute"]: entry for entry in entries if entry["safe"]}


@pytest.mark.slow
def test_explain_shows_candidates_and_their_upkeep(cli: Cli) -> None:
    entries = safe(cli.one("explain")["attributes"])
    assert entries["key"]["chosen"]
    key, hour, other = (entries[name]["expected"] for name in ("key", "hour", "id"))
    for expected in (key, hour, other):
        assert expected["files_low"] <= 4 <= expected["files_high"]
        assert expected["files"] == pytest.approx(4, abs=1)
    assert key["upkeep"] == 0, "the range of a group follows from its key"
    assert hour["upkeep"] == pytest.approx(20 * ROWS / 100, rel=0.2)
    assert other["upkeep"] > 2 * hour["upkeep"]


def test_capture_reports_estimates_of_candidates(cli: Cli) -> None:
    result = cli.one("capture")
    entries = safe(result["considered"])
    assert entries["key"]["chosen"]
    assert entries["hour"]["expected"] is None, "it cannot be better than `key`"
    (chosen,) = result["left"]
    assert chosen["expected"] == entries["key"]["expected"]
    assert (
        chosen["expected"]["files_low"] <= chosen["files"] == 4 <= chosen["expected"]["files_high"]
    )


def test_ties_go_to_the_column_with_cheaper_upkeep(cli: Cli) -> None:
    """The workload lists `id` first, which needs counters for ten ranges per group."""
    text = cli.workload.read_text()
    cli.workload.write_text(text + "partitions: {t: {id: {ranges: 4000}, hour: {ranges: 100}}}\n")
    entries = safe(cli.one("explain")["attributes"])
    assert entries["id"]["expected"]["files"] == entries["hour"]["expected"]["files"]
    assert entries["hour"]["chosen"]
    assert "expected to read less" in entries["id"]["reason"]


ODD_ROWS, ODD_FILES = 4_000, 8

COLUMNS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "two_valued": (pa.bool_(), lambda index: index * 2 >= ODD_ROWS),
    "infinite": (
        pa.float64(),
        lambda index: -math.inf if index == 0 else math.inf if index == ODD_ROWS - 1 else index / 7,
    ),
    "not_a_number": (pa.float64(), lambda index: math.nan if index % 50 == 0 else index / 7),
    "far_apart": (pa.float64(), lambda index: (index * 2 - ODD_ROWS) * (1.7e308 / ODD_ROWS)),
    "wide": (pa.int64(), lambda index: (index - ODD_ROWS // 2) * (2**64 // ODD_ROWS - 1)),
    "missing": (pa.int64(), lambda index: None),
    "missing_text": (
        pa.string(),
        lambda index: None if index > ODD_ROWS // ODD_FILES else f"{index:05}",
    ),
    "long_text": (pa.string(), lambda index: "a" * 200 + f"{index:05}"),
    "odd_text": (
        pa.string(),
        lambda index: "" if index == 0 else chr(0x10FFFF) * 3 + f"{index:05}",
    ),
    "days": (pa.date32(), lambda index: date(1, 1, 1) + timedelta(days=index * 900)),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        lambda index: datetime(1, 1, 2, tzinfo=UTC) + timedelta(days=index * 900),
    ),
    "money": (
        pa.decimal128(38, 2),
        lambda index: Decimal((index - ODD_ROWS // 2) * 10**30).scaleb(-2),
    ),
}


LIMITS = ("COUNT(*) > 0", "SUM(id) > 900000000", "MAX(id) < 600")
GROUPED = {
    f"{key}_{index}": f"SELECT {key}, few, COUNT(*) AS n FROM t GROUP BY 1, 2 HAVING {limit}"
    for key in (*COLUMNS, "few")
    for index, limit in enumerate(LIMITS)
}
EMPTY_RESULTS = {
    f"nothing_{index}": f"SELECT id, few, two_valued FROM t WHERE {condition}"
    for index, condition in enumerate(("id < 0", "missing = 3", "NOT two_valued AND id > 3990"))
}


@pytest.mark.usefixtures("small_tables_are_estimated")
@pytest.mark.parametrize("step", [7, pytest.param(2, marks=pytest.mark.slow)])
def test_estimates_accept_odd_values(tmp_path: Path, cli_of: CliOf, step: int) -> None:
    """Group by each column with each limit; also queries that select nothing."""
    queries = dict([*(GROUPED | EMPTY_RESULTS).items()][::step])
    indexes = range(ODD_ROWS)
    columns = {
        name: pa.array(map(value_at, indexes), kind) for name, (kind, value_at) in COLUMNS.items()
    }
    rows = pa.table(
        {"id": pa.array(indexes), "few": pa.array([i // 500 for i in indexes]), **columns}
    )
    each = ODD_ROWS // ODD_FILES
    parts = (rows.slice(i, each) for i in range(0, ODD_ROWS, each))
    create_laid_out_table(str(tmp_path / "t"), parts)
    results = cli_of({"tables": "t", "queries": queries}).good("explain").results
    assert len(results) == len(queries)
    for one in results:
        entries = [entry for entry in one["attributes"] if entry["safe"]]
        reasons = " ".join(entry["reason"] for entry in entries)
        if one["query"] in GROUPED:
            assert any(entry["chosen"] for entry in entries), one["query"]
        for entry in entries:
            expected = entry["expected"]
            if expected is not None:
                low, high = expected["files_low"], expected["files_high"]
                assert 0 <= low <= expected["files"] <= high + 1, one["query"]
                assert high <= ODD_FILES == expected["files_total"]
            elif one["query"] in GROUPED:
                assert "no estimate" in reasons or all(e["expected"] is None for e in entries)


DRAWN_FILES, EACH = 200, 1_000
DRAWN_ROWS = DRAWN_FILES * EACH
EFFECTS = (0, 4, 20)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """A table with columns for all kinds of groups and values."""
    random, index = np.random.default_rng(5), np.arange(DRAWN_ROWS)
    # Groups of about 200 rows scattered over the table, with different mean prices.
    key = random.integers(0, DRAWN_ROWS // 200, DRAWN_ROWS)
    price, spread = random.normal(100, 20, DRAWN_ROWS), random.normal(0, 1, DRAWN_ROWS // 200)
    odd = price.copy()
    odd[::7], odd[1::7] = np.nan, np.inf
    columns = {
        "at": index,
        "together": index // 50,
        "nearly": index // 50 + np.random.default_rng(1).integers(0, 3, DRAWN_ROWS),
        "large": index // 7_000,
        "key": key,
        **{f"price_{effect}": price + spread[key] * effect for effect in EFFECTS},
        "odd_key": pa.array(key, mask=key == 3),
        "flag": key % 2 == 0,
        "text": [f"{value}" for value in key],
        "odd": pa.array(odd, mask=index % 5 == 0),
    }
    rows, path = pa.table(columns), str(tmp_path_factory.mktemp("drawn") / "t")
    create_laid_out_table(path, (rows.slice(index, EACH) for index in range(0, DRAWN_ROWS, EACH)))
    return open_source("t", path).snapshot()


def draw_groups(table: Snapshot, *groups: str, values: Sequence[str] = ()) -> DrawnGroups:
    bounds = {name: file_bounds(table, name) for name in groups}
    along, *_ = names = [*groups, *values]
    sample = file_sample(table, table.files, names, file_bounds(table, along))
    return drawn_groups(sample, bounds, along, values)


def sizes(result: DrawnGroups) -> np.ndarray:
    return np.bincount(np.unique(result.codes, return_inverse=True)[1], weights=result.weights)


def test_without_groups_each_row_is_a_group(table: Snapshot) -> None:
    result = draw_groups(table, values=["at"])
    assert len(np.unique(result.codes)) == len(result.rows) > DRAWN_ROWS / 10
    assert (result.weights == 1).all()


def test_contiguous_groups_are_complete_or_absent(table: Snapshot) -> None:
    result = draw_groups(table, "together")
    assert (result.weights == 1).all()
    assert (sizes(result) == 50).all()


def test_nearly_contiguous_groups_are_complete(table: Snapshot) -> None:
    result = draw_groups(table, "nearly")
    values, counts = np.unique(np.array(result.rows.column("nearly")), return_counts=True)
    key = read_rows(table, ["nearly"]).column("nearly").to_numpy()
    assert (result.weights == 1).all()
    assert (counts == np.bincount(key)[values]).mean() > 0.95


def test_sampled_rows_of_large_groups_are_weighted(table: Snapshot) -> None:
    result = draw_groups(table, "large")
    keys = np.array(result.rows.column("large"))
    for key in np.unique(keys[(keys > 3) & (keys < DRAWN_ROWS // 7_000 - 3)]):
        rows = result.weights[keys == key].sum()
        windows = round(float((keys == key).sum()) / 714)
        assert rows == pytest.approx(7_000 * max(windows, 1), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("effect", EFFECTS)
def test_sampled_groups_vary_like_whole_groups(table: Snapshot, effect: int) -> None:
    """Means differ by chance, a little or much. Fifths of groups would differ more."""
    result = draw_groups(table, "key", values=[f"price_{effect}"])
    codes = np.unique(result.codes, return_inverse=True)[1]
    prices = np.array(result.rows.column(f"price_{effect}"), dtype=np.float64)
    means = np.bincount(codes, weights=prices) / np.bincount(codes)
    assert means.std() == pytest.approx(np.sqrt(effect**2 + 20**2 / 200), rel=0.35)
    assert sizes(result).mean() == pytest.approx(200, rel=0.1)


def test_odd_values_can_be_sampled(table: Snapshot) -> None:
    result = draw_groups(table, "odd_key", "flag", "text", values=["odd"])
    assert len(result.rows) == len(result.codes) == len(result.weights)
    assert sizes(result).mean() == pytest.approx(200, rel=0.15)
