"""Whole files: loaded values, the list of all problems, and agreement with the JSON Schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from impctl.engine.fixpoint import absorption
from impctl.errors import UsageError, WorkloadError
from impctl.service.init import DEMO_QUERIES, DEMO_TEXT
from impctl.workload.load import MAX_BYTES, load_spark_profile, load_workload, workload_of
from impctl.workload.models import (
    ChangeSpec,
    DeleteSpec,
    InsertSpec,
    MaintainMode,
    Policy,
    ProvenanceSpec,
    ShipMode,
    Workload,
    store_path_problem,
)
from impctl.workload.schema import workload_json_schema
from impctl.workload.sections import resolve_path
from impctl.workload.yaml import YamlFault, compose, sql_location
from tests.fuzz.test_fuzz import changed
from tests.support.random_cases import FEW, random_cases
from tests.workload.conftest import HEAD, Load, Problems

DOCUMENTED = """\
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
    workload = load(DOCUMENTED)
    assert workload.name == "sales"
    assert workload.file == str(tmp_path / "w.yaml")
    assert workload.tables["sales"].path == str(tmp_path / "data" / "sales")
    assert workload.store == str(tmp_path / ".impctl")
    assert workload.spark.master == "local[*]"
    assert workload.spark.conf == {"spark.driver.memory": "4g"}
    assert [update.name for update in workload.updates] == ["s8", "old", "raise", "load"]
    assert [spec.column for spec in workload.partitions] == ["price", "brand"]
    assert list(workload.queries) == ["q_top"]


def test_optional_keys_have_defaults(load: Load, tmp_path: Path) -> None:
    workload = load("version: 1\ntables: {t: {path: /x}}\nqueries: {q: {sql: SELECT 1}}\n")
    query = workload.queries["q"]
    assert workload.name == "w"
    assert workload.store == str(tmp_path / ".impctl")
    assert (workload.partitions, workload.updates) == ((), ())
    assert (workload.spark.master, workload.spark.conf) == (None, {})
    assert (query.policy, query.maintain, query.sketch) == (Policy.AUTO, MaintainMode.LAZY, {})
    empty = load(HEAD + "updates: []\npartitions: {}\n")
    assert (empty.updates, empty.partitions) == ((), ())


def test_all_problems_are_reported_in_file_order(problems: Problems) -> None:
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


def test_the_error_has_the_first_location_and_a_count(load: Load) -> None:
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
    # A missing table is reported once and not for every use.
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
    """`problem` may lack the hint."""
    (result,) = problems(text, {"BLANK": " ", "EMPTY": "", "ODD": "a\udcff"})
    assert problem in (result, result.partition(" | ")[0])


def test_required_sections(problems: Problems) -> None:
    assert [line.split(" | ")[0] for line in problems("name: x\n")] == [
        "1:1 Key `version` is missing in the workload file",
        "1:1 Key `tables` is missing in the workload file",
        "1:1 Key `queries` is missing in the workload file",
    ]
    assert [line.split(" | ")[0] for line in problems("version: 1\ntables: {}\nqueries: {}\n")] == [
        "2:9 `tables` is empty",
        "3:10 `queries` is empty",
    ]
    assert problems("version: 1\ntables: {}\nqueries: {q: {sql: a, sketch: {t: x}}}\n") == [
        "2:9 `tables` is empty | add at least one Delta table",
        "3:32 Table `t` in `queries.q.sketch` is not declared under `tables` | "
        "add the table there, as `name: {path: ...}`",
    ]


def problem_cases(file: Path) -> Iterator[Any]:
    """The cases of `problems.txt`: template, value and expected problem."""
    template = ""
    for line in file.read_text(encoding="utf-8").partition("\n# ")[2].splitlines():
        if line.startswith("    "):
            template += line[4:] + "\n"
        elif " => " in line:
            yield pytest.param(template, *line.split(" => "), id=line[:60])
        else:
            template = ""


@pytest.mark.parametrize(
    ("template", "value", "expected"), [*problem_cases(Path(__file__).with_name("problems.txt"))]
)
def test_problems(problems: Problems, template: str, value: str, expected: str) -> None:
    result = problems(template.replace("@", value.replace("^", "")))
    if expected.startswith("= "):
        assert result == [expected[2:]]
        return
    assert (len(result) > 1) == expected.startswith("+ ")
    parts = expected.removeprefix("+ ").split(" | ")
    (problem,) = [line for line in result if all(part in line for part in parts)]
    if "^" in value:
        preceding = template.replace("@", value).partition("^")[0].split("\n")
        assert problem.startswith(f"{len(preceding)}:{len(preceding[-1]) + 1} ")


def test_valid_names_of_tables(load: Load) -> None:
    for name in ("t", "_t", "T1", "a" * 128):
        assert name in load(HEAD.replace("sales", name)).tables


def test_keys_of_rows_are_text(load: Load) -> None:
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


def test_quotes_and_variables_make_text(load: Load) -> None:
    assert load(HEAD + "name: ${N}\n", {"N": "12"}).name == "12"
    for text in ('"12"', "!!str 12"):
        assert load(f"{HEAD}name: {text}\n").name == "12"
    assert load(HEAD + "name: 2022-01-01\n").name == "2022-01-01"


def test_variables_are_neither_parsed_nor_shown(load: Load, problems: Problems) -> None:
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


def test_settings_become_text(load: Load) -> None:
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


def test_secrets_are_not_in_the_repr(load: Load) -> None:
    text = HEAD.replace("data/sales}", "data/sales, storage_options: {key: '${K}'}}")
    workload = load(text + "spark: {conf: {k: '${K}'}}\n", {"K": "s3cret"})
    assert workload.tables["sales"].storage_options == {"key": "s3cret"}
    assert "s3cret" not in repr(workload)


def test_unusual_keys_are_escaped_and_shortened(problems: Problems) -> None:
    result = problems(HEAD + '"\\e[31m\\n": 1\n' + f"{'k' * 500}: 1\n")
    assert "`\\x1b[31m\\n`" in result[0]
    assert f"`{'k' * 77}...`" in result[1]


def test_unreadable_files(tmp_path: Path) -> None:
    def code_of(path: Path) -> str:
        with pytest.raises(UsageError) as caught:
            load_workload(path, {})
        assert caught.value.hint
        return caught.value.code

    latin1 = tmp_path / "latin.yaml"
    latin1.write_bytes(b"version: 1\nname: \xe4\n")
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (MAX_BYTES + 1))
    assert code_of(tmp_path / "none.yaml") == "workload_not_found"
    assert code_of(tmp_path) == "workload_unreadable"
    assert code_of(latin1 / "below") == "workload_unreadable"
    assert code_of(tmp_path / "a\0b") == "workload_unreadable"
    assert code_of(latin1) == "workload_encoding"
    assert code_of(large) == "workload_too_large"
    assert code_of(Path("/dev/zero")) == "workload_too_large"


def test_a_byte_order_mark_and_windows_line_ends(load: Load) -> None:
    assert load("\ufeff" + HEAD).name == "w"
    assert load(HEAD.replace("\n", "\r\n")).queries["q"].sql == "SELECT 1"


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


def test_a_query_name_as_the_file_gets_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as without_default:
        load_workload(Path("best_days"), {})
    (tmp_path / "impctl.yaml").write_text("version: 1\n")
    with pytest.raises(UsageError) as with_default:
        load_workload(Path("best_days"), {})
    assert "--query best_days" in str(with_default.value.hint)
    assert "--query" not in str(without_default.value.hint)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("data/sales", "/base/data/sales"),
        ("./data//sales/", "/base/data/sales"),
        ("../demo/sales", "/demo/sales"),
        ("/abs/x/../y", "/abs/y"),
        ("s3://bucket/a/../b", "s3://bucket/a/../b"),
        ("abfss://c@a.dfs.core.windows.net/t", "abfss://c@a.dfs.core.windows.net/t"),
        ("file:///x/y", "file:///x/y"),
        ("odd:name", "/base/odd:name"),
        ("a b/ü", "/base/a b/ü"),
    ],
)
def test_relative_paths_start_at_the_file(path: str, expected: str) -> None:
    assert resolve_path(Path("/base"), path) == expected


def test_the_working_directory_does_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "flows"
    folder.mkdir()
    (folder / "w.yaml").write_text(HEAD)
    monkeypatch.chdir(tmp_path)
    relative = load_workload(Path("flows/w.yaml"), {})
    monkeypatch.chdir(folder)
    local = load_workload(Path("w.yaml"), {})
    assert relative.tables["sales"].path == local.tables["sales"].path
    assert relative.tables["sales"].path == str(folder / "data" / "sales")
    assert relative.store == local.store == str(folder / ".impctl")
    assert relative.file == "flows/w.yaml"


def test_a_path_from_a_variable(load: Load, problems: Problems) -> None:
    text = HEAD.replace("data/sales", "'${ROOT:-../demo}/sales'")
    assert load(text).tables["sales"].path.endswith("/demo/sales")
    assert load(text, {"ROOT": "s3://b"}).tables["sales"].path == "s3://b/sales"
    assert "control character" in problems(text, {"ROOT": "a\nb"})[0]


@pytest.mark.parametrize("path", ["kept", "/abs/kept", "odd:name", "a/b:c/d", "c:/drive"])
def test_unusual_store_folders_are_accepted(path: str) -> None:
    assert store_path_problem(path) is None


def test_a_store_uri_from_a_variable_is_refused(load: Load) -> None:
    with pytest.raises(WorkloadError, match="problem"):
        load(HEAD + "store: ${KEPT}/x\n", {"KEPT": "s3://b"})


ROOT = Path(__file__).resolve().parents[2]
WORKLOADS = sorted((ROOT / "workloads").glob("*.yaml"))
PROFILES = sorted((ROOT / "configs").glob("*.yaml"))


@pytest.mark.parametrize("path", WORKLOADS, ids=lambda path: path.name)
def test_every_workload_loads_without_variables(path: Path) -> None:
    workload = load_workload(path, {})
    assert workload.name == path.stem
    assert path.read_text().startswith("# "), "a comment describes the workload"
    for table in workload.tables.values():
        assert table.path == str(ROOT / "demo" / table.name)
    relocated = load_workload(path, {"IMPCTL_DATA": "/data"})
    assert [table.path for table in relocated.tables.values()] == [
        f"/data/{name}" for name in relocated.tables
    ]
    assert Path(workload.store) == ROOT / "workloads" / ".impctl" / path.stem
    candidates = {(spec.table, spec.column) for spec in workload.partitions}
    for query in workload.queries.values():
        assert set(query.sketch.items()) <= candidates


def test_the_list_of_workloads() -> None:
    names = ["crimes", "joins", "orders", "running-example", "synthetic", "tpch"]
    assert [path.stem for path in WORKLOADS] == names


def test_the_running_example_is_the_documented_one() -> None:
    workload = load_workload(ROOT / "workloads" / "running-example.yaml", {})
    price = next(spec for spec in workload.partitions if spec.column == "price")
    assert price.boundaries == (601, 1001, 1501)
    assert workload.queries["q_top"].sketch == {"sales": "price"}
    s8, old, rise = workload.updates
    assert isinstance(s8, InsertSpec)
    assert s8.rows == (
        {"sid": 8, "brand": "HP", "productName": "HP ProBook 650 G10", "price": 1299, "numSold": 1},
    )
    assert isinstance(old, DeleteSpec)
    assert (old.name, old.where) == ("old", "sid = 3")
    assert isinstance(rise, ChangeSpec)
    assert (rise.assignments, rise.where) == ({"price": "price * 1.1"}, "brand = 'Dell'")


def test_a_variable_sets_limits_of_the_synthetic_workload() -> None:
    path = ROOT / "workloads" / "synthetic.yaml"
    assert "< 1600" in load_workload(path, {}).queries["q_avg"].sql
    assert "< 17" in load_workload(path, {"SYNTHETIC_LIMIT": "17"}).queries["q_avg"].sql


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: path.name)
def test_every_profile_keeps_settings_that_results_depend_on(path: Path) -> None:
    profile = load_spark_profile(path, {"IMPCTL_SPARK_MEMORY": "3g"})
    assert profile.master is not None
    assert profile.conf["spark.driver.memory"] == "3g"
    assert profile.conf["spark.sql.ansi.enabled"] == "true"
    assert profile.conf["spark.sql.session.timeZone"] == "UTC"


def test_the_demo_of_init_has_the_queries_of_make_demo() -> None:
    demo = workload_of(Path("demo.yaml"), DEMO_TEXT, {})
    shipped = load_workload(ROOT / "workloads" / "orders.yaml", {})
    assert tuple(demo.queries) == tuple(shipped.queries) == DEMO_QUERIES
    for name in DEMO_QUERIES:
        query, expected = demo.queries[name], shipped.queries[name]
        assert (query.sql, query.answer) == (expected.sql, expected.answer)


VARIED = (
    DOCUMENTED.replace("data/sales}", "${A:-data}/sales, storage_options: &o {k: v}}")
    .replace("{path: ${A:-data}", '{path: "${A:-data}"')
    .replace('"${A:-data}"/sales', '"${A:-data}/sales"')
)


INSERTIONS = (
    *("\0", "\x85", "\u2028", "\ufeff", "\r", "😀", "$$", "\\ud800", "\\U00110000"),
    *("!!str ", "!!python/name:os.system ", "&o ", "*o", "<<: *o", "? ", "---\n", "...\n", "1e999"),
)
"""Text with a special meaning in YAML; `changed` inserts more."""


def damaged(cases: Iterable[int]) -> Iterator[str]:
    """A valid file with other values, keys, lines or characters, by seed."""
    for seed in cases:
        yield changed(seed, VARIED).encode("utf-8", "replace").decode()
        index = Random(seed).randrange(len(VARIED))
        yield VARIED[:index] + INSERTIONS[seed % len(INSERTIONS)] + VARIED[index:]


def load_or_refuse(path: Path, data: bytes) -> Workload | None:
    """The workload, or None if it was refused with a hint and valid locations."""
    path.write_bytes(data)
    workload: Workload | None = None
    refusal: UsageError | None = None
    try:
        workload = load_workload(path, {"A": "value"})
    except UsageError as error:
        refusal = error
    if isinstance(refusal, WorkloadError):
        assert refusal.problems
        lines = data.decode("utf-8-sig").count("\n") + data.count(b"\r") + 1
        for problem in refusal.problems:
            assert 1 <= problem.location.line <= lines
            assert problem.location.column >= 1
            assert problem.hint
            problem.message.encode()
    elif refusal is not None:
        assert refusal.hint
    return workload


@pytest.mark.timeout(60)
def test_the_text_to_damage_is_valid(tmp_path: Path) -> None:
    assert load_or_refuse(tmp_path / "w.yaml", VARIED.encode()) is not None


@pytest.mark.slow
@random_cases(20, 40, 200)
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, cases: list[int]) -> None:
    for text in damaged(cases):
        workload = load_or_refuse(tmp_path / "w.yaml", text.encode())
        for query in workload.queries.values() if workload is not None else ():
            for line, column in product((-1, 0, 1, 5), (-1, 0, 7, 90)):
                location = sql_location(query, line, column)
                assert location.line >= 1
                assert location.column >= 1


BLOCKS = "a: |\r\n  x\r\n  é😀\r\nb: >-\n  c\n\n  d\n'e': \"f\\\n  g\"\n"


def summary(node: yaml.Node) -> object:
    """The parts of a composed node that the loader uses, without positions of empty scalars."""
    if isinstance(node, yaml.ScalarNode):
        position = (node.start_mark.index, node.end_mark.index, node.start_mark.line)
        return node.tag, node.value, node.style, position if node.value else None
    if isinstance(node, yaml.MappingNode):
        parts = [summary(part) for pair in node.value for part in pair]
    else:
        parts = [summary(part) for part in node.value]
    return node.tag, node.start_mark.index, parts


@pytest.mark.slow
@pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML was built without libyaml")
@random_cases(20, 40, 200)
def test_both_parsers_read_the_same(cases: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def read(text: str, *, is_fast: bool) -> object:
        monkeypatch.setattr(yaml, "__with_libyaml__", is_fast)
        try:
            root = compose(text)
        except YamlFault as fault:
            # The two may differ in syntax errors, but not in limits.
            return None if "is not valid YAML" in fault.message else fault.message
        return "empty" if root is None else summary(root)

    for text in (VARIED, BLOCKS, *damaged(cases)):
        fast, plain = read(text, is_fast=True), read(text, is_fast=False)
        assert fast == plain or plain is None, text


@pytest.mark.timeout(60)
@FEW
@given(st.binary(max_size=200))
def test_bytes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    load_or_refuse(tmp_path_factory.getbasetemp() / "bytes.yaml", data)


DOCUMENT = yaml.safe_load(DOCUMENTED)
TYPES = {"string": str, "boolean": bool, "object": dict, "array": list, "null": type(None)}

LOADER_ONLY = (
    "is not declared under",
    "have the same name",
    "are the same column",
    "appears twice",
    "must increase",
    "must be of one type",
    "` needs `",
    "must be a duration such as",
    "is not a share",
    "is not a date or a time",
    "does not exist in the calendar",
    "must be later than",
    "with different `changes`",
)
"""Problems that only the loader finds, in a file without variables."""


def accepts(schema: Any, value: Any) -> bool:
    """A reference validator for the few keywords the schema uses; others fail."""
    unknown = schema.keys() - {*KEYWORDS, "$schema", "$id", "title", "description", "deprecated"}
    assert not unknown, f"unknown keywords: {unknown}"
    return all(KEYWORDS[key](schema, value) for key in schema.keys() & KEYWORDS.keys())


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def has_type(schema: Any, value: Any) -> bool:
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    for name in names:
        if name == "integer" and is_number(value) and value == int(value):
            return True
        if name == "number" and is_number(value):
            return True
        if name in TYPES and isinstance(value, TYPES[name]):
            return True
    return False


def extra_properties(schema: Any, value: Any) -> bool:
    rule = schema["additionalProperties"]
    extra = [v for k, v in named(value) if k not in schema.get("properties", {})]
    return not extra if rule is False else all(accepts(rule, item) for item in extra)


def named(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


KEYWORDS: dict[str, Any] = {
    "type": has_type,
    "const": lambda s, v: v == s["const"] and not isinstance(v, bool),
    "enum": lambda s, v: v in s["enum"],
    "pattern": lambda s, v: not isinstance(v, str) or re.search(s["pattern"], v) is not None,
    "minimum": lambda s, v: not is_number(v) or v >= s["minimum"],
    "exclusiveMinimum": lambda s, v: not is_number(v) or v > s["exclusiveMinimum"],
    "maximum": lambda s, v: not is_number(v) or v <= s["maximum"],
    "minItems": lambda s, v: not isinstance(v, list) or len(v) >= s["minItems"],
    "maxItems": lambda s, v: not isinstance(v, list) or len(v) <= s["maxItems"],
    "items": lambda s, v: all(accepts(s["items"], item) for item in listed(v)),
    "minProperties": lambda s, v: not isinstance(v, dict) or len(v) >= s["minProperties"],
    "propertyNames": lambda s, v: all(accepts(s["propertyNames"], k) for k, _ in named(v)),
    "properties": lambda s, v: all(
        accepts(s["properties"][k], item) for k, item in named(v) if k in s["properties"]
    ),
    "additionalProperties": extra_properties,
    "required": lambda s, v: not isinstance(v, dict) or all(k in v for k in s["required"]),
    "anyOf": lambda s, v: any(accepts(part, v) for part in s["anyOf"]),
    "oneOf": lambda s, v: sum(accepts(part, v) for part in s["oneOf"]) == 1,
}


WORDS = st.sampled_from(
    ["", " ", "a b", "t", "u", "sales", "16", "auto", "lazy", "007", "no"]
    + ["${V}", "${W}", "${", "$$"]
)
SCALARS = (
    WORDS
    | st.none()
    | st.booleans()
    | st.integers(-2, 100_001)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: value % 1 != 0)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=2),
    max_leaves=3,
)
KNOWN_KEYS = [
    *("version", "name", "tables", "partitions", "queries", "updates", "store", "spark", "path"),
    *("storage_options", "boundaries", "fragments", "sql", "sketch", "policy", "maintain"),
    *("insert", "delete", "update", "table", "rows", "file", "where", "set", "master", "conf"),
    *("t", "q", "extra"),
]


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(listed(value))
    return [
        path,
        *(inner_path for key, item in inner for inner_path in paths_in(item, (*path, key))),
    ]


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """The documented file with up to three values replaced, removed or added."""
    document = deepcopy(DOCUMENT)
    for _ in range(draw(st.integers(0, 3))):
        path = draw(st.sampled_from(paths_in(document)))
        if not path:
            continue
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "replace":
            parent[path[-1]] = draw(ANYTHING)
        elif action == "remove":
            del parent[path[-1]]
        elif isinstance(parent, dict):
            parent[draw(st.sampled_from(KNOWN_KEYS))] = draw(ANYTHING)
        else:
            parent.append(draw(ANYTHING))
    return document


def problems_of(path: Path, document: Any) -> list[str]:
    # JSON is YAML, with quotes around text only.
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    try:
        load_workload(path, {"V": "16", "W": "x y"})
    except WorkloadError as error:
        return [problem.message for problem in error.problems]
    return []


@pytest.mark.slow
@FEW
@given(documents())
def test_loader_and_schema_accept_the_same_documents(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    problems = problems_of(tmp_path_factory.getbasetemp() / "schema.yaml", document)
    if not accepts(workload_json_schema(), document):
        assert problems, "the schema refuses what the loader accepts"
    elif "${" not in json.dumps(document):
        unexpected = [m for m in problems if not any(part in m for part in LOADER_ONLY)]
        assert not unexpected, "the schema accepts what the loader refuses"


def with_value(document: Any, path: str, value: Any) -> Any:
    *parents, last = path.split("/")
    parent = document
    for key in parents:
        parent = parent[int(key) if isinstance(parent, list) else key]
    parent[int(last) if isinstance(parent, list) else last] = value
    return document


ABSORPTION = {"kind": "absorption"}
VALID: dict[str, list[Any]] = {
    "name": ["x"],
    "version": [1],
    "tables/t2": [{"path": "x", "storage_options": {"a": 1, "b": True, "c": ""}}],
    "tables/sales/changes": [
        *("never", {"every": "1h", "rows": 20, "deletes": "5%"}, [{"until": "2026-12-01"}])
    ],
    "partitions/sales/price": [{"boundaries": [1.5, 2]}, {"fragments": "${V}"}],
    "queries/q_top/sketch": [{}, "none"],
    "queries/q_top/trigger": [
        *("commit", "use", {"fresh_within": "10m", "rows": 5, "cheap": True}),
        {"cron": "@daily", "timezone": "Asia/Tokyo"},
        {"point": "nightly", "ready_within": " 1.5 h "},
    ],
    "queries/q_top/provenance": [
        *("absorption", ABSORPTION, {**ABSORPTION, "ship": "eager"}),
        {**ABSORPTION, "ship": "lazy", "nodes": 7},
    ],
    "credentials": ["${U:-ambient}"],
    "limits": [{"rounds": "${V}"}],
    "updates/0/insert/rows/0/x": [None],
    "updates/2/update/set": [{"a": 1, "b": True, "c": "d"}],
    "spark": [{}],
}
INVALID: dict[str, list[Any]] = {
    "name": [" ", 1],
    "version": [2, True],
    "tables": [{}],
    "tables/a-b": [{"path": "x"}],
    "tables/t2": [{"path": "x", "storage_options": {"a": None}}],
    "tables/sales/changes": [
        *("always", {"every": 5}, {"every": "1h", "rows": 0}, {"until": "soon"}, {}, [], ["never"]),
        {"every": "1h", "rows": 9, "deletes": 5},
    ],
    "partitions/sales/price": [
        *({"boundaries": []}, {"boundaries": [True]}, {"ranges": 0}, {}),
        {"fragments": 2, "boundaries": [1]},
    ],
    "partitions/sales": [{}],
    "queries/q_top/policy": ["never"],
    "queries/q top": [{"sql": "SELECT 1"}],
    "queries/q2": [{"sql": "\n"}],
    "queries/q_top/trigger": [
        *("daily", {"every": "15 parsecs"}, {"every": 15}, {"rows": 0}, {"cheap": True}, {}, None),
        *({"commit": True, "rows": 5}, {"point": "a b"}),
    ],
    "queries/q_top/provenance": [
        *("ranks", True, {"ship": "lazy"}, {"kind": "why"}, {**ABSORPTION, "ship": "slow"}),
        *({**ABSORPTION, "nodes": 0}, {**ABSORPTION, "nodes": "many"}, {**ABSORPTION, "size": 3}),
    ],
    "limits": [{"rounds": 0}],
    "updates/0/insert/rows/0/x": [[1]],
    "updates/0/insert/rows/0": [{}],
    "updates/0/insert/file": ["x"],
    "updates/1/insert": [{"table": "sales", "file": "x"}],
    "updates/2/update/set": [{"a": None}, {"a": ""}],
    "updates/2/name": ["a b"],
    "spark/conf": [None],
    "extra": [1],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value", "is_valid"),
    [
        (path, value, changes is VALID)
        for changes in (VALID, INVALID)
        for path, values in changes.items()
        for value in values
    ],
)
def test_loader_and_schema_agree_on_single_changes(
    tmp_path: Path, path: str, value: Any, is_valid: bool
) -> None:
    document = with_value(deepcopy(DOCUMENT), path, value)
    assert accepts(workload_json_schema(), document) is is_valid
    # Only a plain scalar becomes a number, but JSON quotes the variable.
    if '"${V}"' not in json.dumps(document):
        assert (problems_of(tmp_path / "w.yaml", document) == []) is is_valid


def test_every_object_of_the_schema_has_a_description() -> None:
    def undescribed(schema: Any, path: str) -> list[str]:
        result = [] if "description" in schema else [path]
        for name, inner in schema.get("properties", {}).items():
            result += undescribed(inner, f"{path}.{name}")
        items = schema.get("items")
        if isinstance(items, dict) and items.get("type") == "object":
            result += undescribed(items, f"{path}[]")
        inner = schema.get("additionalProperties")
        if isinstance(inner, dict) and inner.get("type") == "object":
            result += undescribed(inner, f"{path}.*")
        return result

    assert undescribed(workload_json_schema(), "") == []


def test_each_call_returns_a_new_document() -> None:
    workload_json_schema()["type"] = "array"
    assert workload_json_schema()["type"] == "object"
    assert json.loads(json.dumps(workload_json_schema())) == workload_json_schema()


PROVENANCE = {
    "absorption": (ShipMode.LAZY, 5_000_000),
    "{kind: absorption}": (ShipMode.LAZY, 5_000_000),
    "{kind: absorption, ship: lazy, nodes: 7}": (ShipMode.LAZY, 7),
    "{kind: absorption, ship: eager}": (ShipMode.EAGER, 5_000_000),
}


def test_provenance_is_an_option_of_queries_only(load: Load, problems: Problems) -> None:
    plain = load(HEAD).queries["q"]
    assert plain.provenance is None
    for written, (ship, nodes) in PROVENANCE.items():
        text = HEAD.replace("SELECT 1", f"SELECT 1, provenance: {written}")
        assert load(text).queries["q"].provenance == ProvenanceSpec(ship, nodes)
        # The default is witnesses, but absorption needs all derivations.
        (problem,) = problems(text + "defaults: {lineage: witness}\n")
        assert "write `lineage: all`" in problem
        combined = (
            text.replace("SELECT 1", "SELECT 1, lineage: all") + "defaults: {lineage: witness}\n"
        )
        assert load(combined).queries["q"].provenance is not None
    (problem,) = problems(HEAD + "defaults: {provenance: absorption}\n")
    assert "provenance" in problem


def test_provenance_defaults_match_the_engine() -> None:
    assert list(map(str, ShipMode)) == list(map(str, absorption.Shipping))
    assert ProvenanceSpec().nodes == absorption.Absorbs().nodes == absorption.NODES
    assert ProvenanceSpec().ship == absorption.Absorbs().ship
