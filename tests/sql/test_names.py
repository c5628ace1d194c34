"""Names of tables, expansion of views, parameters, and constants of the clock."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from impctl.data import schema
from impctl.errors import Location, QueryError, UsageError
from impctl.expr.nodes import Compare, Expr, Literal
from impctl.plan.fingerprint import fingerprint
from impctl.plan.nodes import Query, Select
from impctl.sql.names import TableNames, path_key
from impctl.sql.parameters import Clock, bind, instant_of, literal_text
from impctl.sql.statement import parse_query
from impctl.sql.views import Views, expand_views
from impctl.types import ParameterValue
from tests.plan.catalogs import cases, refusal, schema_of

NAMES = TableNames(
    {
        ("main", "shop", "sales"): "sales",
        ("hive", "old shop", "sales"): "old",
        ("m", "s", "d"): "d",
    },
    {path_key("/lake/sales"): "sales", path_key("s3://b/t"): "old"},
    catalog="Main",
    schema="Shop",
)


@pytest.mark.parametrize(("written", "table"), [*cases("names", "tables"), ("", "none")])
def test_names_resolve_to_tables(written: str, table: str) -> None:
    assert NAMES.called(written) == (None if table == "none" else table)


def test_a_schema_named_delta_precedes_paths() -> None:
    names = TableNames({("spark_catalog", "delta", "/lake/t"): "named"}, {"/lake/t": "found"})
    assert names.called("delta.`/lake/t`") == "named"


@pytest.mark.parametrize(
    ("written", "parts"),
    [("a.b", ("a", "b")), ("`a.b`.c", ("a.b", "c")), ("`a``b`", ("a`b",)), ("`a`b", None)],
)
def test_parts_of_a_name(written: str, parts: tuple[str, ...] | None) -> None:
    assert schema.name_parts(written) == parts


SCHEMA = schema.Schema(tuple(schema.Column(name, schema.INTEGER) for name in ("k", "x", "note")))
TABLES = {"sales": SCHEMA, "hr.sales": SCHEMA, "people": SCHEMA}
LONG_NAMES = TableNames(
    {
        ("main", "shop", "sales"): "sales",
        ("main", "legacy", "umsatz"): "sales",
        ("main", "hr", "sales"): "hr.sales",
        ("main", "shop", "people"): "people",
    },
    {"/lake/sales": "sales"},
    "main",
    "shop",
)


def read(sql: str) -> Query:
    return parse_query(sql, TABLES, names=LONG_NAMES)


SAME = cases("names", "one source")


@pytest.mark.parametrize("sql", SAME)
def test_all_names_of_a_table_are_equal(sql: str) -> None:
    result = read(sql)
    assert fingerprint(result.root) == fingerprint(read(*SAME[0].values).root)
    assert [scan.access for scan in result.root.scans] == ["sales#1"]


@pytest.mark.parametrize(
    ("sql", "written"),
    [
        ("SELECT x FROM main . `shop`.sales AS t", "main . `shop`.sales"),
        ("SELECT x FROM delta.`/lake/sales`", "delta.`/lake/sales`"),
        ("SELECT x FROM /* shop.sales */ shop.sales", "shop.sales"),
    ],
)
def test_the_span_covers_the_whole_name(sql: str, written: str) -> None:
    result = read(sql)
    (scan,) = result.root.scans
    assert sql[scan.span.start : scan.span.end] == written
    assert result.mentions == ((scan.span, "sales"),)


def test_two_names_of_one_table_are_two_accesses() -> None:
    result = read("SELECT a.x FROM shop.sales a JOIN legacy.umsatz b ON a.k = b.k")
    assert [scan.access for scan in result.root.scans] == ["sales#1", "sales#2"]


def test_qualified_stars() -> None:
    for star in ("*", "people.*", "shop.people.*", "main.shop.people.*"):
        names = [a.name for a in read(f"SELECT {star} FROM people").root.attributes]
        assert names == ["k", "x", "note"], star


def test_tables_of_unused_entries_are_mentioned() -> None:
    result = read("WITH c AS (SELECT * FROM hr.sales) SELECT x FROM people")
    assert result.tables == ("people", "hr.sales")


@pytest.mark.parametrize(("sql", "message"), cases("names", "refused"))
def test_unknown_or_ambiguous_names_are_refused(sql: str, message: str) -> None:
    assert message in refusal(sql, read).message


def test_a_wrong_schema_gets_a_helpful_hint() -> None:
    hint = refusal("SELECT x FROM crm.people", read).hint or ""
    assert "`people`" in hint
    assert "`names`" in hint


VIEWED_TABLES = {"t": schema_of("k int, x int")}
VIEWED_NAMES = TableNames({("c", "s", "t"): "t"}, catalog="c", schema="s")
VIEWS: Views = {
    ("c", "s", "big"): ("big", "SELECT k, x FROM s.t WHERE x > 5 -- only big ones"),
    ("c", "s", "twice"): ("twice", "SELECT b.k, b.x FROM big b JOIN big ON big.k = b.k;"),
    ("c", "o", "far"): ("o.far", "WITH big AS (SELECT 1 AS k FROM t) SELECT k FROM big"),
    ("c", "s", "a"): ("a", "SELECT * FROM b"),
    ("c", "s", "b"): ("b", "SELECT * FROM (SELECT * FROM s.a)"),
}
BIG = "(SELECT k, x FROM t WHERE x > 5)"


def expanded(sql: str) -> str:
    return expand_views(sql, VIEWS, VIEWED_NAMES, name="q").sql


@pytest.mark.parametrize(("sql", "same"), cases("names", "views"))
def test_a_view_is_read_as_a_subquery(sql: str, same: str) -> None:
    query = parse_query(expanded(sql), VIEWED_TABLES, names=VIEWED_NAMES)
    expected = parse_query(same, VIEWED_TABLES, names=VIEWED_NAMES)
    assert fingerprint(query.root) == fingerprint(expected.root)


@pytest.mark.parametrize(
    "sql", ["SELECT k AS big FROM t", "WITH big AS (SELECT 1 AS a) SELECT * FROM big", "SELECT k"]
)
def test_a_query_without_views_is_unchanged(sql: str) -> None:
    assert expanded(sql) == sql


def test_views_precede_the_recursive_entries() -> None:
    step = "SELECT big.x FROM r JOIN big ON r.n = big.k"
    sql = f"WITH RECURSIVE r(n) AS (SELECT k FROM big UNION {step}) SELECT n FROM r"
    text = expanded(sql)
    assert text.startswith("WITH RECURSIVE big AS (")
    assert len(text.split("x > 5")) == 2
    inlined = sql.replace("FROM big", f"FROM {BIG} big").replace("JOIN big", f"JOIN {BIG} big")
    plans = [parse_query(each, VIEWED_TABLES, names=VIEWED_NAMES).root for each in (text, inlined)]
    assert fingerprint(plans[0]) == fingerprint(plans[1])


@pytest.mark.parametrize(
    ("sql", "is_expanded"),
    [
        # With RECURSIVE an entry is visible in its own query, otherwise not.
        ("WITH RECURSIVE big AS (SELECT k FROM t UNION SELECT k FROM big) SELECT k FROM big", 0),
        ("WITH big AS (SELECT k FROM t UNION SELECT k FROM big) SELECT k FROM big", 1),
        ("WITH RECURSIVE c AS (SELECT k FROM big), big AS (SELECT k FROM t) SELECT k FROM c", 1),
    ],
)
def test_a_recursive_entry_hides_a_view_in_itself(sql: str, is_expanded: int) -> None:
    assert expanded(sql).count("x > 5") == is_expanded


def test_a_view_used_twice_is_expanded_once() -> None:
    assert expanded("SELECT a.k FROM twice a, big b").count("x > 5") == 1


def test_circular_views_are_refused_with_the_circle() -> None:
    with pytest.raises(QueryError) as caught:
        expanded("SELECT * FROM a")
    assert caught.value.code == "view_circle"
    assert "`a` -> `b` -> `a`" in caught.value.message
    location = caught.value.location
    assert (location.file, location.line, location.column) == ("query `view b`", 1, 30)


def test_positions_map_to_the_original_text() -> None:
    sql = "WITH c AS (SELECT 1 AS one)\nSELECT s.big.k\nFROM s.big, o.far f"
    result = expand_views(sql, VIEWS, VIEWED_NAMES, name="q")
    texts: dict[str | None, str] = {**dict(VIEWS.values()), None: sql}
    for word, owner in (("x > 5", "big"), ("SELECT 1 AS k", "o.far"), ("1 AS one", None),
                        ("f", None)):  # fmt: skip
        index = result.sql.rindex(word) if word == "f" else result.sql.index(word)
        line = result.sql.count("\n", 0, index) + 1
        name, offset = result.written_at(line, index - result.sql.rfind("\n", 0, index))
        assert name == owner, word
        assert texts[name][offset:].startswith(word), word


CATALOG = {
    "t": schema_of(
        "i int, n bigint, m decimal(38,2), d double, s string, b boolean, y date, t timestamp"
    )
}
ATTACKS = (
    "' OR 1=1 --",
    "x' UNION SELECT * FROM t --",
    "\\' OR TRUE --",
    "\\",
    "'; DROP TABLE t; --",
    "/* */ '",
    '"',
    "`",
    "\n\r\0\x1a\t",
    "${env:HOME}",
    "$(x) ${spark.master}",
    "%_\\%\\_",
    "ünï\u2028\U0001f600",
    ":i",
    "",
)


def _bound_operand(column: str, value: ParameterValue) -> Expr:
    """Return what `column >= :v` compares with after binding."""
    bound = bind(f"SELECT i FROM t WHERE {column} >= :v", {"v": value}, name="q")
    (node,) = [x for x in parse_query(bound.sql, CATALOG).root.walk() if isinstance(x, Select)]
    assert isinstance(node.predicate, Compare)
    return node.predicate.right


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("i", 5000, Literal(5000, schema.INTEGER)),
        ("i", -5, Literal(-5, schema.INTEGER)),
        ("n", 2**40, Literal(2**40, schema.LONG)),
        ("n", -(2**63), Literal(-(2**63), schema.LONG)),
        ("m", Decimal("0.5"), Literal(Decimal("0.5"), schema.decimal(1, 1))),
        ("m", Decimal("7000"), Literal(Decimal(7000), schema.decimal(4, 0))),
        ("m", Decimal("-1.25"), Literal(Decimal("-1.25"), schema.decimal(3, 2))),
        ("d", 1e3, Literal(1000.0, schema.DOUBLE)),
        ("d", -2.5e-300, Literal(-2.5e-300, schema.DOUBLE)),
        ("d", 1e22, Literal(1e22, schema.DOUBLE)),
        ("b", True, Literal(True, schema.BOOLEAN)),
        ("y", date(2024, 1, 31), Literal(19753, schema.DATE)),
        ("t", datetime(1970, 1, 2, tzinfo=UTC), Literal(86_400_000_000, schema.TIMESTAMP)),
        ("t", datetime(1970, 1, 2, 3), Literal(97_200_000_000, schema.TIMESTAMP)),
    ],
)
def test_values_become_typed_literals(column: str, value: ParameterValue, expected: Expr) -> None:
    assert _bound_operand(column, value) == expected


@pytest.mark.parametrize("text", ATTACKS)
def test_text_is_quoted_safely(text: str) -> None:
    assert _bound_operand("s", text) == Literal(text, schema.STRING)
    written = literal_text(text)
    assert written[1:-1].isprintable()
    assert not set("'\"$") & set(written[1:-1])


def test_only_parameters_are_replaced() -> None:
    sql = "SELECT ':a', `:a` -- :a\n FROM t /* :a */ WHERE x > :a AND p:a::int = 1 OR :a<y"
    assert bind(sql, {"a": 7}, name="q").sql == (
        "SELECT ':a', `:a` -- :a\n FROM t /* :a */ WHERE x > 7 AND p:a::int = 1 OR 7<y"
    )


def test_a_negative_number_does_not_start_a_comment() -> None:
    bound = bind("SELECT i -:a, -:a FROM t", {"a": -1}, name="q").sql
    assert bound == "SELECT i -(-1), -(-1) FROM t"


def test_a_query_without_parameters_is_kept() -> None:
    for sql in ("SELECT p:a FROM t", "SELECT 1", "SELECT ':"):
        assert bind(sql, {}, name="q").sql == sql


@pytest.mark.parametrize(
    ("sql", "values", "code", "column"),
    [
        ("SELECT i FROM t WHERE i > :lo", {"low": 1}, "parameter_unused", None),
        ("SELECT i FROM t WHERE i > :lo", {}, "parameter_unknown", 27),
        ("SELECT i FROM t WHERE y > DATE :a", {"a": "2024-01-01"}, "parameter_misplaced", 32),
        ("SELECT i FROM :a", {"a": "t"}, "parameter_misplaced", 15),
        ("SELECT i AS :a FROM t", {"a": "x"}, "parameter_misplaced", 13),
        ("SELECT i FROM t ORDER BY :a", {"a": 1}, "parameter_misplaced", 26),
        ("SELECT i FROM t WHERE y > INTERVAL :a DAYS", {"a": 1}, "parameter_misplaced", 36),
        ("SELECT i FROM t WHERE i > 2 :a", {"a": 1}, "parameter_misplaced", 29),
        ("SELECT i FROM t WHERE i > :a.5", {"a": 1}, "parameter_misplaced", 27),
    ],
)
def test_binding_errors_have_a_location(
    sql: str, values: dict[str, ParameterValue], code: str, column: int | None
) -> None:
    with pytest.raises(UsageError) as caught:
        bind(sql, values, name="q")
    assert caught.value.code == code
    assert caught.value.hint
    expected = None if column is None else Location("query `q`", 1, column)
    assert caught.value.location == expected


def test_a_number_too_long_for_spark_is_refused() -> None:
    for value in (2**63, Decimal("1" * 39)):
        with pytest.raises(UsageError, match="more digits"):
            literal_text(value)


def test_bound_positions_map_back() -> None:
    sql = "SELECT i\nFROM t WHERE i > :a AND s = :b AND zz = 1"
    bound = bind(sql, {"a": 123456, "b": "it's"}, name="q")
    with pytest.raises(QueryError) as caught:
        parse_query(bound.sql, CATALOG, name="q")
    location = caught.value.location
    line, column = bound.written_at(location.line, location.column)
    assert (line, column) == (2, sql.split("\n")[1].index("zz") + 1)
    at_b = bound.sql.split("\n")[1].index("'it")
    assert bound.written_at(2, at_b + 3) == (2, sql.split("\n")[1].index(":b") + 1)
    assert bound.written_at(1, 8) == (1, 8)


NOW = datetime(2026, 11, 25, 23, 40, 12, 345678, tzinfo=UTC)


def truncated(unit: str) -> str:
    return f"date_trunc('{unit}', current_timestamp)"


@pytest.mark.parametrize(
    ("zone", "constant", "value"),
    [
        ("UTC", "current_date", date(2026, 11, 25)),
        ("Europe/Berlin", "current_date", date(2026, 11, 26)),
        ("+05:30", "current_date", date(2026, 11, 26)),
        ("America/St_Johns", "current_date", date(2026, 11, 25)),
        ("UTC", truncated("hour"), datetime(2026, 11, 25, 23, tzinfo=UTC)),
        ("Europe/Berlin", truncated("hour"), datetime(2026, 11, 25, 23, tzinfo=UTC)),
        ("+05:30", truncated("hour"), datetime(2026, 11, 25, 23, 30, tzinfo=UTC)),
        ("America/St_Johns", truncated("hour"), datetime(2026, 11, 25, 23, 30, tzinfo=UTC)),
        ("UTC", truncated("day"), datetime(2026, 11, 25, tzinfo=UTC)),
        ("UTC", truncated("week"), datetime(2026, 11, 23, tzinfo=UTC)),
        ("UTC", truncated("month"), datetime(2026, 11, 1, tzinfo=UTC)),
        ("UTC", truncated("quarter"), datetime(2026, 10, 1, tzinfo=UTC)),
        ("UTC", truncated("year"), datetime(2026, 1, 1, tzinfo=UTC)),
    ],
)
def test_periods_begin_by_the_time_zones_calendar(zone: str, constant: str, value: date) -> None:
    assert Clock(NOW, zone).value(constant) == value


def test_daylight_saving_shifts_periods() -> None:
    # 2026-10-25 in Berlin: 02:30 occurs twice. In Santiago, 2026-09-06 begins at 01:00.
    for hour in (0, 1):
        time = datetime(2026, 10, 25, hour, 30, tzinfo=UTC)
        assert Clock(time, "Europe/Berlin").value(truncated("hour")) == time.replace(minute=0)
    late = Clock(datetime(2026, 9, 6, 12, tzinfo=UTC), "America/Santiago")
    assert late.value(truncated("day")) == datetime(2026, 9, 6, 4, tzinfo=UTC)


@pytest.mark.parametrize(("sql", "bound"), cases("names", "constants of the clock"))
def test_a_constant_becomes_one_literal(sql: str, bound: str) -> None:
    assert bind(sql, {}, name="q", clock=Clock(NOW)).sql == bound


@pytest.mark.parametrize("sql", cases("names", "no constants of the clock"))
def test_other_text_stays(sql: str) -> None:
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    assert (result.sql, dict(result.moments)) == (sql, {})


def test_lines_of_a_string_do_not_form_a_constant() -> None:
    unit = "'day\n,\nnow\n(\n)\n)\n'"
    sql = f"SELECT coalesce(date_trunc({unit}, at), at) > due FROM t"
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    assert (result.sql, dict(result.moments)) == (sql, {})


def test_positions_after_constants_map_back() -> None:
    sql = "SELECT date_trunc('hour',\n  now()) AS h, oops, current_date + zero"
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    lines = result.sql.split("\n")
    assert len(lines) == 2
    written = sql.split("\n")[1]
    for word in ("oops", "zero"):
        assert result.written_at(2, lines[1].index(word) + 1) == (2, written.index(word) + 1)


def test_stored_values_precede_the_clock() -> None:
    result = bind(
        "SELECT current_date, :day",
        {},
        name="q",
        clock=Clock(NOW, held={"current_date": "2026-01-02", ":day": "2026-01-03"}),
        follows={"day": "current_date"},
    )
    assert result.sql == "SELECT DATE '2026-01-02', DATE '2026-01-03'"
    assert result.moments == {"current_date": "2026-01-02", ":day": "2026-01-03"}


@pytest.mark.parametrize(
    ("written", "zone", "expected"),
    [
        ("2026-11-25", "+02:00", datetime(2026, 11, 24, 22, tzinfo=UTC)),
        ("2026-11-25 13:00", "Europe/Berlin", datetime(2026, 11, 25, 12, tzinfo=UTC)),
        ("2026-11-25T13:00:00+01:00", "UTC", datetime(2026, 11, 25, 12, tzinfo=UTC)),
        ("2026-11-25T13:00:00.5Z", "+02:00", datetime(2026, 11, 25, 13, 0, 0, 500000, tzinfo=UTC)),
    ],
)
def test_a_given_time_is_in_the_zone(written: str, zone: str, expected: datetime) -> None:
    assert instant_of(written, zone) == expected


@pytest.mark.parametrize("written", ["", "tomorrow", "2026-13-01", "2026-11-25 25:00", "20261125"])
def test_an_invalid_time_is_refused(written: str) -> None:
    with pytest.raises(UsageError) as caught:
        instant_of(written, "UTC")
    assert caught.value.code == "now_syntax"


@pytest.mark.parametrize("alias", ["AS current_date", "current_date", "AS `Current_Date`"])
def test_a_bare_name_may_be_an_alias(alias: str) -> None:
    inner = f"SELECT * FROM (SELECT day {alias} FROM t) WHERE "
    result = bind(f"{inner}current_date > DATE '2020-01-01'", {}, name="q", clock=Clock(NOW))
    assert result.sql == f"{inner}current_date > DATE '2020-01-01'"
    assert not result.moments
    result = bind(f"{inner}current_date > current_date()", {}, name="q", clock=Clock(NOW))
    assert result.sql == f"{inner}current_date > DATE '2026-11-25'"


def test_a_string_is_not_an_alias() -> None:
    sql = "SELECT 'current_date' FROM t WHERE day > current_date"
    result = bind(sql, {}, name="q", clock=Clock(NOW))
    assert result.sql == "SELECT 'current_date' FROM t WHERE day > DATE '2026-11-25'"
