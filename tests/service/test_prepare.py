"""Queries made ready: safe plans, the facts they rest on, estimates, and what the store keeps."""

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


def test_it_is_refused_with_its_reason(cli_of: CliOf) -> None:
    ran = cli_of(WORKLOAD, t=pa.table(ROWS_OF_T), u=U)("capture", "--dry-run")
    assert ran.refusal == (3, "sketch_unsafe")
    assert "depends on the order of rows" in ran.error["message"]


def test_no_other_query_may_use_its_sketch() -> None:
    tally = ReuseTally()
    run_reuse_trial(33_034_575, tally)
    (reason,) = tally.refusals
    assert reason.startswith("the contents of a sketch cannot be determined")


def test_another_attribute_is_tried(cli_of: CliOf) -> None:
    """`h` is grouped on as well, and the join reads it, so the core keeps it."""
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
    told = {c["attribute"]: c for c in cli.one("explain")["attributes"]}
    assert told["g"]["reason"].startswith("the contents of a sketch cannot be determined"), told


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
    query, place = read_net(sql), Location("w.yaml", 1, 1)
    modes = {"policy": Policy.AUTO, "maintain": MaintainMode.LAZY, "join": JoinStrategy.AUTO}
    places = {"location": place, "sql_origin": SqlOrigin(place, (), ())}
    spec = QuerySpec(name="q", sql="", sketch={}, **modes, **places)
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
OF_NO_FIXPOINT = "SELECT a.dst FROM links a JOIN links b ON a.src = b.dst"
UNITED: list[tuple[str, Ids, set[frozenset[str]], Ids]] = [
    # Also where it is not keyed: what another build captured with a barrier is wider, not wrong.
    *(
        (KEYED + above, TWO, {BOTH}, dict.fromkeys(TWO, (0, 1, 3)))
        for above in (FEW, "SELECT t, n FROM r", "SELECT AVG(n) FROM r")
    ),
    (KEYED + FEW, dict.fromkeys(TWO, (0, 1)), {BOTH}, dict.fromkeys(TWO, (0, 1))),
    # Others are left as they are, and a base by itself is a group of one.
    *((sql, TWO, set(), TWO) for sql in (ENTRY.format("") + FEW, OF_NO_FIXPOINT)),
    (KEYED + FEW, {FIRST: (0, 1)}, {frozenset({FIRST})}, {FIRST: (0, 1)}),
]


@pytest.mark.parametrize(("sql", "held", "groups", "united"), UNITED)
def test_sketches_of_a_fixpoint_that_can_be_keyed_are_one(
    sql: str, held: Ids, groups: set[frozenset[str]], united: Ids
) -> None:
    prepared, sketches = _prepared(sql), [_stored(access, ids) for access, ids in held.items()]
    assert groups_of(prepared, sketches) == groups
    result = united_groups(prepared, sketches)
    assert {sketch.access: sketch.ranges.ids for sketch in result} == united
    assert united != held or [*result] == sketches


def test_over_other_ranges_each_there_are_none() -> None:
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


def assumed(column: str, kind: FactKind, table: str = "t") -> Assumption:
    return assumption_of(Fact(table, column, kind, FactSource.STATISTICS))


def look_at(snapshot: Snapshot, assumption: Assumption, rows: list[tuple[Any, int]]) -> None:
    name = assumption.column
    table = pa.table({name: pa.array([value for value, _ in rows], SCHEMA.field(name).type)})
    recheck([assumption], snapshot, table, np.array([w for _, w in rows], dtype=np.int64))


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
def test_inserted_rows_count_and_deleted_ones_do_not(
    snapshot: Snapshot, column: str, kind: FactKind, good: list[Any], bad: list[Any]
) -> None:
    assumption = assumed(column, kind)
    inserted = [(value, 1) for value in good]
    for rows in ([], inserted, [*((value, -1) for value in bad), *inserted]):
        look_at(snapshot, assumption, rows)
    for value in bad:
        with pytest.raises(AssumptionBrokenError, match=f"`t.{column}` (>= 0|<= 0|has no)"):
            look_at(snapshot, assumption, [*inserted, (value, 1)])


def test_other_tables_are_another_matter(snapshot: Snapshot) -> None:
    look_at(snapshot, assumed("i", NONNEGATIVE, table="u"), [(-1, 1)])


def test_all_assumptions_are_looked_at(snapshot: Snapshot) -> None:
    rows = pa.table({"i": pa.array([1]), "d": pa.array([None], pa.float64())})
    facts = [assumed("i", NONNEGATIVE), assumed("i", NOT_NULL), assumed("d", NOT_NULL)]
    recheck(facts[:2], snapshot, rows, np.array([1]))
    with pytest.raises(AssumptionBrokenError, match="`t.d` has no NULL"):
        recheck(facts, snapshot, rows, np.array([1]))


def test_changes_of_a_real_table(path: str) -> None:
    """An update's old image is a deletion: only its new one is held against the facts."""
    write_deltalake(path, pa.table([[-3], [0.0], [0], ["y"]], schema=SCHEMA), mode="append")
    DeltaTable(path).update(updates={"i": "3"}, predicate="i = -3")
    source = open_source("t", path)
    facts = [assumed("i", NONNEGATIVE)]
    mended = read_changes(source, 1, 2, ["i"])
    assert sorted(mended.table.column("i").to_pylist()) == [-3, 3]
    recheck(facts, source.snapshot(2), mended.table, mended.weights)
    broken = read_changes(source, 0, 1, ["i"])
    with pytest.raises(AssumptionBrokenError):
        recheck(facts, source.snapshot(1), broken.table, broken.weights)


def test_columns_and_words() -> None:
    facts = [assumed("d", NONNEGATIVE), assumed("i", NOT_NULL), assumed("d", NAN_FREE)]
    facts.append(assumed("x", NOT_NULL, table="u"))
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


def test_what_was_stored_comes_back() -> None:
    assert read_meta(META.as_stored()) == META
    least = StateMeta(way="w", circuit="c")
    assert read_meta({"way": "w", "circuit": "c"}).as_stored() == least.as_stored()
    assert type(read_meta(META.as_stored()).depths[1].at_capture) is float
    # Cached states are compared with what the store returns.
    assert json.loads(json.dumps(META.as_stored())) == META.as_stored()


ODD: dict[tuple[str, ...], tuple[Any, ...]] = {
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
    ("name", "value"), [(n, v) for names, values in ODD.items() for n in names for v in values]
)
def test_what_impctl_would_not_have_written_is_corrupt(name: str, value: Any) -> None:
    with pytest.raises(StateCorruptError, match="query `q`"):
        read_meta({**META.as_stored(), name: value})


@pytest.mark.parametrize("name", ["way", "circuit"])
def test_what_has_no_default_must_be_there(name: str) -> None:
    stored = META.as_stored()
    del stored[name]
    with pytest.raises(StateCorruptError):
        read_meta(stored)


def test_the_basis_is_part_of_it_and_marks_the_schemas_of_marked_files() -> None:
    pins = [TablePin(t, f"/{t}", f"id-{t}", 1, '{"fields": []}') for t in ("t", "v")]
    basis, stored = META.basis(pins), META.as_stored()
    assert set(basis.pop("schemas")) == {"t"}
    names = ("circuit", "answer", "template", "moments", "marks", "files")
    assert basis == {name: stored[name] for name in names}


FILES, RANGES = 50, 200


@pytest.fixture
def spans() -> FileSpans:
    """Four ranges a file, values 0 to 9 of a file in each."""
    files = [ValueBounds(40 * at, 40 * at + 39, 0, 100) for at in range(FILES)]
    partition = RangePartition("t", "c", LONG, tuple(range(10, 2000, 10)))
    return file_spans(partition, column_bounds(files, LONG))


def mixture(chances: np.ndarray) -> Mixture:
    return Mixture(np.ones((1, RANGES + 1)), np.append(chances, 0.0)[None])


def left(spans: FileSpans, chances: np.ndarray, most_together: int) -> FilesLeft:
    result = mixture(chances)
    ends = [result, mixture(chances / 2), mixture(np.minimum(chances * 2, 1.0))]
    return FilesLeft.of(spans, ends, 0.01, most_together)


def test_fewer_ranges_where_they_leave_as_much(spans: FileSpans) -> None:
    third = (np.arange(RANGES) // 4 % 3 == 0).astype(np.float64)
    result = left(spans, third, 100)
    assert result.likely.sum() == 17
    assert result.together == 4, "a file is one range; two files in one would leave both"
    assert left(spans, third, 2).together == 2
    assert left(spans, third, 1).together == 1
    assert left(spans, np.ones(RANGES), 100).together == 64


def test_fewest_likely_most(spans: FileSpans) -> None:
    result = left(spans, np.full(RANGES, 0.1), 1)
    likely, fewest, most = result.between()
    assert likely == pytest.approx(FILES * (1 - 0.9**4))
    assert 0 <= fewest < FILES * (1 - 0.95**4) < likely < FILES * (1 - 0.8**4) < most
    everything = FilesLeft.all_of(FILES)
    assert everything.between() == (FILES, FILES, FILES)


def test_no_file_is_left_less_likely_than_its_rows_tell(spans: FileSpans) -> None:
    at_least = left(spans, np.zeros(RANGES), 1).at_least(np.full(FILES, 0.5))
    assert (at_least.likely.sum(), at_least.low.sum()) == (FILES / 2, 0)


def test_as_good_within_a_tenth_of_the_bytes(spans: FileSpans) -> None:
    half = left(spans, np.repeat([1.0, 0.0], RANGES // 2), 1)
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
    """Groups of a hundred rows in the order of files, four hundred rows an hour."""

    def write(folder: Path) -> None:
        at, step = np.arange(ROWS), ROWS // FILE_COUNT
        price = np.where(at >= ROWS * 9 // 10, 3, 1)
        rows = pa.table({"key": at // 100, "hour": at // 400, "price": price, "id": at})
        parts = (rows.slice(start, step) for start in range(0, ROWS, step))
        create_laid_out_table(str(folder / "t"), parts)
        sql = "SELECT key, SUM(price) AS s FROM t GROUP BY 1 HAVING SUM(price) > 200"
        text = f"version: 1\ntables: {{t: {{path: t}}}}\nqueries: {{q: {{sql: '{sql}'}}}}\n"
        write_files(folder, text)

    return cli_once("estimated", write)


def safe(entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry["attribute"]: entry for entry in entries if entry["safe"]}


@pytest.mark.slow
def test_explain_shows_every_candidate_and_what_its_upkeep_takes(cli: Cli) -> None:
    entries = safe(cli.one("explain")["attributes"])
    assert entries["key"]["chosen"]
    key, hour, other = (entries[name]["expected"] for name in ("key", "hour", "id"))
    for expected in (key, hour, other):
        assert expected["files_low"] <= 4 <= expected["files_high"]
        assert expected["files"] == pytest.approx(4, abs=1)
    assert key["upkeep"] == 0, "the range of a group follows from its key"
    assert hour["upkeep"] == pytest.approx(20 * ROWS / 100, rel=0.2)
    assert other["upkeep"] > 2 * hour["upkeep"]


def test_capture_tells_what_it_foresaw_of_what_may_be_taken(cli: Cli) -> None:
    result = cli.one("capture")
    entries = safe(result["considered"])
    assert entries["key"]["chosen"]
    assert entries["hour"]["expected"] is None, "it cannot be better than `key`"
    (left,) = result["left"]
    assert left["expected"] == entries["key"]["expected"]
    assert left["expected"]["files_low"] <= left["files"] == 4 <= left["expected"]["files_high"]


def test_of_two_that_leave_as_much_the_one_that_is_cheaper_to_keep_is_taken(cli: Cli) -> None:
    """The file names `id` first, which takes counters for ten ranges of every group."""
    text = cli.workload.read_text()
    cli.workload.write_text(text + "partitions: {t: {id: {ranges: 4000}, hour: {ranges: 100}}}\n")
    entries = safe(cli.one("explain")["attributes"])
    assert entries["id"]["expected"]["files"] == entries["hour"]["expected"]["files"]
    assert entries["hour"]["chosen"]
    assert "expected to read less" in entries["id"]["reason"]


ODD_ROWS, ODD_FILES = 4_000, 8

COLUMNS: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "two_valued": (pa.bool_(), lambda at: at * 2 >= ODD_ROWS),
    "infinite": (
        pa.float64(),
        lambda at: -math.inf if at == 0 else math.inf if at == ODD_ROWS - 1 else at / 7,
    ),
    "not_a_number": (pa.float64(), lambda at: math.nan if at % 50 == 0 else at / 7),
    "far_apart": (pa.float64(), lambda at: (at * 2 - ODD_ROWS) * (1.7e308 / ODD_ROWS)),
    "wide": (pa.int64(), lambda at: (at - ODD_ROWS // 2) * (2**64 // ODD_ROWS - 1)),
    "missing": (pa.int64(), lambda at: None),
    "missing_text": (pa.string(), lambda at: None if at > ODD_ROWS // ODD_FILES else f"{at:05}"),
    "long_text": (pa.string(), lambda at: "a" * 200 + f"{at:05}"),
    "odd_text": (pa.string(), lambda at: "" if at == 0 else chr(0x10FFFF) * 3 + f"{at:05}"),
    "days": (pa.date32(), lambda at: date(1, 1, 1) + timedelta(days=at * 900)),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        lambda at: datetime(1, 1, 2, tzinfo=UTC) + timedelta(days=at * 900),
    ),
    "money": (pa.decimal128(38, 2), lambda at: Decimal((at - ODD_ROWS // 2) * 10**30).scaleb(-2)),
}


LIMITS = ("COUNT(*) > 0", "SUM(id) > 900000000", "MAX(id) < 600")
GROUPED = {
    f"{grouped}_{at}": f"SELECT {grouped}, few, COUNT(*) AS n FROM t GROUP BY 1, 2 HAVING {limit}"
    for grouped in (*COLUMNS, "few")
    for at, limit in enumerate(LIMITS)
}
NOTHING_LEFT = {
    f"nothing_{at}": f"SELECT id, few, two_valued FROM t WHERE {asked}"
    for at, asked in enumerate(("id < 0", "missing = 3", "NOT two_valued AND id > 3990"))
}


@pytest.mark.usefixtures("small_tables_are_estimated")
@pytest.mark.parametrize("step", [7, pytest.param(2, marks=pytest.mark.slow)])
def test_estimates_bear_odd_values(tmp_path: Path, cli_of: CliOf, step: int) -> None:
    """Grouped by any column, with the limits in turn, and where nothing is left."""
    queries = dict([*(GROUPED | NOTHING_LEFT).items()][::step])
    at = range(ODD_ROWS)
    columns = {name: pa.array(map(make, at), kind) for name, (kind, make) in COLUMNS.items()}
    rows = pa.table({"id": pa.array(at), "few": pa.array([i // 500 for i in at]), **columns})
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
    """A table whose columns are groups and values of every kind."""
    random, at = np.random.default_rng(5), np.arange(DRAWN_ROWS)
    # Groups of 200 rows, each anywhere in the table, that differ by so much in price.
    key = random.integers(0, DRAWN_ROWS // 200, DRAWN_ROWS)
    price, spread = random.normal(100, 20, DRAWN_ROWS), random.normal(0, 1, DRAWN_ROWS // 200)
    odd = price.copy()
    odd[::7], odd[1::7] = np.nan, np.inf
    columns = {
        "at": at,
        "together": at // 50,
        "nearly": at // 50 + np.random.default_rng(1).integers(0, 3, DRAWN_ROWS),
        "large": at // 7_000,
        "key": key,
        **{f"price_{effect}": price + spread[key] * effect for effect in EFFECTS},
        "odd_key": pa.array(key, mask=key == 3),
        "flag": key % 2 == 0,
        "text": [f"{value}" for value in key],
        "odd": pa.array(odd, mask=at % 5 == 0),
    }
    rows, path = pa.table(columns), str(tmp_path_factory.mktemp("drawn") / "t")
    create_laid_out_table(path, (rows.slice(at, EACH) for at in range(0, DRAWN_ROWS, EACH)))
    return open_source("t", path).snapshot()


def drawn(table: Snapshot, *groups: str, values: Sequence[str] = ()) -> DrawnGroups:
    bounds = {name: file_bounds(table, name) for name in groups}
    along, *_ = names = [*groups, *values]
    sample = file_sample(table, table.files, names, file_bounds(table, along))
    return drawn_groups(sample, bounds, along, values)


def sizes(result: DrawnGroups) -> np.ndarray:
    return np.bincount(np.unique(result.codes, return_inverse=True)[1], weights=result.weights)


def test_without_groups_each_row_is_one(table: Snapshot) -> None:
    result = drawn(table, values=["at"])
    assert len(np.unique(result.codes)) == len(result.rows) > DRAWN_ROWS / 10
    assert (result.weights == 1).all()


def test_groups_that_lie_together_are_whole_or_left_out(table: Snapshot) -> None:
    result = drawn(table, "together")
    assert (result.weights == 1).all()
    assert (sizes(result) == 50).all()


def test_rows_that_lie_nearly_together_make_whole_groups(table: Snapshot) -> None:
    result = drawn(table, "nearly")
    values, counts = np.unique(np.array(result.rows.column("nearly")), return_counts=True)
    key = read_rows(table, ["nearly"]).column("nearly").to_numpy()
    assert (result.weights == 1).all()
    assert (counts == np.bincount(key)[values]).mean() > 0.95


def test_of_a_group_larger_than_a_window_rows_stand_for_all_of_it(table: Snapshot) -> None:
    result = drawn(table, "large")
    keys = np.array(result.rows.column("large"))
    for key in np.unique(keys[(keys > 3) & (keys < DRAWN_ROWS // 7_000 - 3)]):
        rows = result.weights[keys == key].sum()
        windows = round(float((keys == key).sum()) / 714)
        assert rows == pytest.approx(7_000 * max(windows, 1), rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("effect", EFFECTS)
def test_groups_drawn_in_part_differ_as_whole_ones_do(table: Snapshot, effect: int) -> None:
    """By chance alone, by a little, by much: a group of a fifth of its rows would differ more."""
    result = drawn(table, "key", values=[f"price_{effect}"])
    codes = np.unique(result.codes, return_inverse=True)[1]
    prices = np.array(result.rows.column(f"price_{effect}"), dtype=np.float64)
    means = np.bincount(codes, weights=prices) / np.bincount(codes)
    assert means.std() == pytest.approx(np.sqrt(effect**2 + 20**2 / 200), rel=0.35)
    assert sizes(result).mean() == pytest.approx(200, rel=0.1)


def test_odd_values_stand_in_no_ones_way(table: Snapshot) -> None:
    result = drawn(table, "odd_key", "flag", "text", values=["odd"])
    assert len(result.rows) == len(result.codes) == len(result.weights)
    assert sizes(result).mean() == pytest.approx(200, rel=0.15)
