"""Whole files: what comes out, and that everything wrong is told at once with its place."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from impctl.errors import UsageError, WorkloadError
from impctl.workload.load import MAX_BYTES, load_spark_profile, load_workload
from impctl.workload.models import MaintainMode, Policy

from .conftest import HEAD, Load, Problems

DESIGN = """\
version: 1
name: sales
tables:
  sales: {path: data/sales}            # Delta table; relative to this file, or a URI
partitions:
  sales:
    price: {boundaries: [601, 1001, 1501]}
    brand: {ranges: 16}
queries:
  q_top:
    sql: |
      SELECT brand, SUM(price * numSold) AS rev FROM sales
      GROUP BY brand HAVING SUM(price * numSold) > 5000
    sketch: {sales: price}
    policy: auto
    maintain: lazy
updates:
  - name: s8
    insert: {table: sales, rows: [{sid: 8, brand: HP, productName: "HP ProBook", price: 1299}]}
  - {name: old, delete: {table: sales, where: "sid = 3"}}
  - {name: raise, update: {table: sales, set: {price: "price * 1.1"}, where: "brand = 'Dell'"}}
  - {name: load, insert: {table: sales, file: batches/0001.parquet}}
store: .impctl
spark: {master: "local[*]", conf: {spark.driver.memory: 4g}}
"""


def test_the_documented_file(load: Load, tmp_path: Path) -> None:
    workload = load(DESIGN)
    assert workload.name == "sales"
    assert workload.file == str(tmp_path / "w.yaml")
    assert workload.tables["sales"].path == str(tmp_path / "data" / "sales")
    assert workload.store == str(tmp_path / ".impctl")
    assert workload.spark.master == "local[*]"
    assert workload.spark.conf == {"spark.driver.memory": "4g"}
    assert [update.name for update in workload.updates] == ["s8", "old", "raise", "load"]
    assert [spec.column for spec in workload.partitions] == ["price", "brand"]
    assert list(workload.queries) == ["q_top"]


def test_what_may_be_left_out(load: Load, tmp_path: Path) -> None:
    workload = load("version: 1\ntables: {t: {path: /x}}\nqueries: {q: {sql: SELECT 1}}\n")
    query = workload.queries["q"]
    assert workload.name == "w"
    assert workload.store == str(tmp_path / ".impctl")
    assert (workload.partitions, workload.updates) == ((), ())
    assert (workload.spark.master, workload.spark.conf) == (None, {})
    assert (query.policy, query.maintain, query.sketch) == (Policy.AUTO, MaintainMode.LAZY, {})


def test_every_problem_is_told_at_once_in_file_order(problems: Problems) -> None:
    result = problems(
        "version: 2\n"
        "tables: {sales: {path: 3}, Sales: {}}\n"
        "partitions: {sale: {price: {boundaries: [2, 1]}}}\n"
        "queries:\n"
        "  q: {sqll: SELECT 1, policy: always}\n"
        "updates: [{name: a, insert: {table: sale, rows: []}}, {name: ${UNSET}}]\n".replace(
            "${UNSET}", "'${UNSET}'"
        )
        + "stroe: x\n"
    )
    assert result == [
        "1:10 `version` must be the number 1 | write `version: 1`",
        "2:24 `tables.sales.path` must be text, not a whole number | put quotes around it",
        "2:28 Tables `sales` and `Sales` have the same name | rename one; names are not "
        "case-sensitive in Spark",
        "2:35 Key `path` is missing in `tables.Sales` | add `path:`",
        "3:14 Table `sale` in `partitions` is not declared under `tables` | did you mean `sales`?",
        "3:45 Values of `partitions.sale.price.boundaries` must increase, but number 2 does not | "
        "sort the boundaries and remove duplicates",
        "5:6 Key `sql` is missing in `queries.q` | add `sql:`",
        "5:7 Key `sqll` is unknown in `queries.q` | did you mean `sql`?",
        "5:31 `queries.q.policy` must be one of `auto`, `incremental`, `strict`, `full` "
        "| write one of these words",
        "6:37 Table `sale` in `updates[1].insert` is not declared under `tables` "
        "| did you mean `sales`?",
        "6:49 `updates[1].insert.rows` is empty | write at least one row",
        "6:55 `updates[2]` must have exactly one of `insert`, `delete`, `update` | add one of them",
        "6:62 Variable `UNSET` is not set | set `UNSET` in the environment, or give a default: "
        "`${UNSET:-value}`",
        "7:1 Key `stroe` is unknown in the workload file | did you mean `store`?",
    ]


def test_the_error_itself_has_the_first_place_and_the_count(load: Load) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(HEAD + "a: 1\nb: 2\n")
    assert "w.yaml` has 2 problems" in caught.value.message
    assert caught.value.location == caught.value.problems[0].location
    assert (caught.value.exit_code, caught.value.code) == (2, "workload_invalid")


ONE_PROBLEM: list[tuple[str, str]] = [
    *(
        (text, "1:1 The file is empty | start with `version: 1`")
        for text in ("", "\n\n", "# nothing yet\n", "---\n", "\ufeff")
    ),
    *(
        (text, f"1:1 The workload file must be a mapping, not {kind} | write `key: value` pairs")
        for text, kind in (("[1]", "a list"), ("word", "text"), ("12", "a whole number"))
    ),
    *(
        (HEAD.replace(": 1", f": {version}", 1), "1:10 `version` must be the number 1")
        for version in ("2", "'1'", "1.0", "true")
    ),
    (HEAD.replace(": 1", ": []", 1), "1:10 `version` must be the number 1, not a list"),
    # A table that is missing is told once and not again with every use.
    (
        "version: 1\nqueries: {q: {sql: SELECT 1, sketch: {t: a}}}\n",
        "1:1 Key `tables` is missing in the workload file",
    ),
    (
        "version: 1\ntables:\n  t: {path: a}\n  t: {path: b}\nqueries: {q: {sql: x}}\n",
        "4:3 Key `t` appears twice in `tables` | remove one; the first is on line 3",
    ),
    (HEAD + "? [a]\n: 1\n", "4:3 A key in the workload file must be text"),
    (HEAD + "spark: {<<: 3}\n", "4:13 `<<` of `spark` must be a mapping, not a whole number"),
    (HEAD + "name: 12\n", "4:7 `name` must be text, not a whole number"),
    (HEAD + "name:\n", "4:6 `name` must be text, not nothing"),
    (HEAD + "name: '${BLANK}'\n", "4:7 `name` is empty"),
    (HEAD + "name: ${EMPTY}\n", "4:7 `name` is empty"),
    (HEAD + "name: ${ODD}\n", "4:7 The value of a variable is not text"),
    (HEAD + "name: a${B}\n", "4:8 Variable `B` is not set"),
    (HEAD + 'name: "a${B}"\n', "4:7 Variable `B` is not set"),
    (
        HEAD + "name: 2022-13-01\n",
        "4:7 `name`: This date or timestamp does not exist in the calendar",
    ),
    (HEAD.replace("\n", "\r\n") + "nam: 1\r\n", "4:1 Key `nam` is unknown in the workload file"),
]


@pytest.mark.parametrize(("text", "problem"), ONE_PROBLEM)
def test_one_problem(problems: Problems, text: str, problem: str) -> None:
    """With its hint or without."""
    (result,) = problems(text, {"BLANK": " ", "EMPTY": "", "ODD": "a\udcff"})
    assert problem in (result, result.partition(" | ")[0])


def test_sections_that_must_not_be_missing_or_empty(problems: Problems) -> None:
    assert [line.split(" | ")[0] for line in problems("name: x\n")] == [
        "1:1 Key `version` is missing in the workload file",
        "1:1 Key `tables` is missing in the workload file",
        "1:1 Key `queries` is missing in the workload file",
    ]
    assert [line.split(" | ")[0] for line in problems("version: 1\ntables: {}\nqueries: {}\n")] == [
        "2:9 `tables` is empty",
        "3:10 `queries` is empty",
    ]


@pytest.mark.parametrize(
    "name", ["1a", "a-b", "a b", "a.b.c.d", "a.", "ä", "a" * 129, "''", '"t\\n"']
)
def test_names_of_tables_are_identifiers(load: Load, problems: Problems, name: str) -> None:
    text = f"version: 1\ntables: {{? {name} : {{path: x}}}}\nqueries: {{q: {{sql: SELECT 1}}}}\n"
    assert any("cannot be the name of a table" in result for result in problems(text))
    for good in ("t", "_t", "T1", "a" * 128):
        assert good in load(text.replace(f"? {name} :", f"? {good} :")).tables


def test_keys_are_text_as_written(load: Load) -> None:
    rows = "[{on: 1, 2: 2, null: 3, 2022-01-01: 4}]"
    text = f"updates: [{{name: u, insert: {{table: sales, rows: {rows}}}}}]"
    update = load(HEAD + text).updates[0]
    assert update.rows == ({"on": 1, "2": 2, "null": 3, "2022-01-01": 4},)  # type: ignore[union-attr]


def test_anchors_and_merges(load: Load) -> None:
    workload = load(
        "version: 1\n"
        "tables:\n"
        "  a: &a {path: x, storage_options: &o {k: v}}\n"
        "  b: {<<: *a, path: y}\n"
        "  c: {path: z, storage_options: {<<: [{k: w}, *o], m: n}}\n"
        "queries: {q: &q {sql: SELECT 1}, r: *q}\n"
    )
    paths = {name: Path(table.path).name for name, table in workload.tables.items()}
    assert paths == {"a": "x", "b": "y", "c": "z"}
    assert workload.tables["b"].storage_options == {"k": "v"}
    assert workload.tables["c"].storage_options == {"k": "w", "m": "n"}
    assert workload.queries["r"].sql == "SELECT 1"


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['true']",
        "!!python/name:os.system",
        "!secret x",
        "!!binary aGk=",
        "!!int '3'",
        "!!set {a}",
        "!<tag:x,2000:y> [a]",
    ],
)
def test_tags_are_refused(problems: Problems, value: str) -> None:
    result = problems(
        HEAD + f"updates: [{{name: u, delete: {{table: sales, where: {value} }} }}]\n"
    )
    assert len(result) == 1
    assert "is not allowed" in result[0] or "must be text" in result[0]


def test_what_quotes_or_a_variable_make_text(load: Load) -> None:
    assert load(HEAD + "name: ${N}\n", {"N": "12"}).name == "12"
    for written in ('"12"', "!!str 12"):
        assert load(f"{HEAD}name: {written}\n").name == "12"
    assert load(HEAD + "name: 2022-01-01\n").name == "2022-01-01"


def test_a_value_cannot_break_the_structure_or_show_in_a_message(
    load: Load, problems: Problems
) -> None:
    value = "s3cret}\nstore: elsewhere\n# ${OTHER}"
    assert load(HEAD + "name: ${V}\n", {"V": value}).name == value
    sections = (
        "partitions: {sales: {a: {ranges: '${V}'}, b: {boundaries: ['${V}', 1]}}}\n"
        "updates:\n"
        "- {name: '${V}', delete: {table: '${V}', where: x}}\n"
        "- {name: u, insert: {table: sales, file: '${V}'}}\n"
        "spark: '${V}'\n"
        "store: ${V}\n"
    )
    result = problems(HEAD + sections, {"V": value})
    assert len(result) >= 7
    assert "s3cret" not in "".join(result)


def test_settings_become_text_as_written(load: Load) -> None:
    conf = (
        "spark: {conf: {a: 8, b: FALSE, c: 1.50, d: 007, e: '', f: 4g, g: 2022-01-01, h: ${H}}}\n"
    )
    conf = conf.replace("${H}", "'${H}'")
    assert load(HEAD + conf, {"H": "x"}).spark.conf == {
        "a": "8",
        "b": "false",
        "c": "1.50",
        "d": "007",
        "e": "",
        "f": "4g",
        "g": "2022-01-01",
        "h": "x",
    }


def test_settings_without_a_value(problems: Problems) -> None:
    result = problems(HEAD + "spark: {conf: {a: , b: [1]}, master: [x]}\n")
    assert [line.split(" | ")[0] for line in result] == [
        f"4:{19 if yaml.__with_libyaml__ else 18} `spark.conf.a` is empty",
        "4:24 `spark.conf.b` must be text, a number, or true or false, not a list",
        "4:38 `spark.master` must be text, not a list",
    ]


def test_secrets_stay_out_of_what_is_printed(load: Load) -> None:
    text = HEAD.replace("data/sales}", "data/sales, storage_options: {key: '${K}'}}")
    workload = load(text + "spark: {conf: {k: '${K}'}}\n", {"K": "s3cret"})
    assert workload.tables["sales"].storage_options == {"key": "s3cret"}
    assert "s3cret" not in repr(workload)


def test_strange_keys_are_shown_printable_and_short(problems: Problems) -> None:
    result = problems(HEAD + '"\\e[31m\\n": 1\n' + f"{'k' * 500}: 1\n")
    assert "`\\x1b[31m\\n`" in result[0]
    assert f"`{'k' * 77}...`" in result[1]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def code_of(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            load_workload(path, {})
        assert caught.value.hint
        return caught.value.code

    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"version: 1\nname: \xe4\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    assert code_of(tmp_path / "none.yaml") == "workload_not_found"
    assert code_of(tmp_path) == "workload_unreadable"
    assert code_of(latin / "below") == "workload_unreadable"
    assert code_of(tmp_path / "a\0b") == "workload_unreadable"
    assert code_of(latin) == "workload_encoding"
    assert code_of(large) == "workload_too_large"
    assert code_of(Path("/dev/zero")) == "workload_too_large"


def test_a_byte_order_mark_and_windows_line_ends(load: Load) -> None:
    assert load("\ufeff" + HEAD).name == "w"
    assert load(HEAD.replace("\n", "\r\n")).queries["q"].sql == "SELECT 1"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("spark.sql.session.timezone", "spark.sql.session.timeZone"),
        ("spark.sql.shuffle.partition", "spark.sql.shuffle.partitions"),
        ("spark.sql.ansi.enable", "spark.sql.ansi.enabled"),
    ],
)
def test_a_misspelt_spark_setting(problems: Problems, name: str, meant: str) -> None:
    (result,) = problems(HEAD + f"spark: {{conf: {{{name}: x}}}}\n")
    assert f"`{name}`" in result
    assert f"`{meant}`" in result


@pytest.mark.parametrize(
    "name",
    [
        "spark.sql.session.timeZone",
        "spark.sql.catalog.shop",
        "spark.driver.port",
        "spark.hadoop.fs.s3a.endpoint",
    ],
)
def test_other_spark_settings_are_passed_on(load: Load, name: str) -> None:
    assert load(HEAD + f"spark: {{conf: {{{name}: x}}}}\n").spark.conf == {name: "x"}


def test_a_spark_profile(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("master: local[2]\nconf: {spark.ui.enabled: false, m: '${M}'}\n")
    profile = load_spark_profile(path, {"M": "4g"})
    assert profile.master == "local[2]"
    assert profile.conf == {"spark.ui.enabled": "false", "m": "4g"}
    path.write_text("master: local[2]\nconfig: {}\n")
    with pytest.raises(WorkloadError) as caught:
        load_spark_profile(path, {})
    assert caught.value.problems[0].hint == "did you mean `conf`?"


def test_a_query_given_as_the_file_is_told_from_a_wrong_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as there_is_none:
        load_workload(Path("best_days"), {})
    (tmp_path / "impctl.yaml").write_text("version: 1\n")
    with pytest.raises(UsageError) as caught:
        load_workload(Path("best_days"), {})
    assert "--query best_days" in str(caught.value.hint)
    assert "--query" not in str(there_is_none.value.hint)
