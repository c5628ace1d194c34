"""Results, warnings and errors of calls, on a real table without Spark; the package's names."""

from __future__ import annotations

import ast
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from msgspec.structs import asdict

import impctl
from impctl import errors
from impctl.cli.output.outcome import to_json
from impctl.errors import (
    ImpctlError,
    ImpctlWarning,
    LockHeldError,
    QueriesFailedError,
    QueryError,
    RecaptureNeededError,
    UsageError,
    WorkloadError,
)
from tests.api.conftest import write_folder
from tests.behaviour.test_bad_input import held_lock
from tests.support.kept_workload import answer_at, applied, grow, write_workload
from tests.support.run_cli import ROWS, Cli, MadeOnce, python, refused


def append(folder: Path, *groups: int) -> None:
    rows = {"g": list(groups), "x": [5] * len(groups), "note": ["z"] * len(groups)}
    write_deltalake(str(folder / "t"), pa.table(rows, schema=ROWS.schema), mode="append")


def test_capture_maintain_status_rewrite(folder: Path) -> None:
    with impctl.open(folder / "w.yaml") as opened:
        assert opened.queries == ("q", "many", "none")
        (captured,) = opened.capture("q")
        assert isinstance(captured, impctl.CaptureResult)
        assert captured.sketches[0].ranges == (0, 1)
        assert captured.spark_ms == 0
        append(folder, 5, 5)
        (status,) = opened.status("q")
        assert (status.stale, status.pending_versions) == (True, {"t": 1})
        (planned,) = opened.maintain("q", dry_run=True)
        assert planned.dry_run
        (maintained,) = opened.maintain("q")
        assert (maintained.action, maintained.added) == ("exact", (2,))
        assert asdict(maintained)["versions"] == {"t": 1}
        rewritten = opened.rewrite("q")
        assert rewritten.intervals == ("g < 6L",)
        assert [entry.query for entry in opened.explain()] == ["q", "many", "none"]


def test_rewrite_at_older_versions(folder: Path) -> None:
    """The newest and older versions share cached plans."""
    with impctl.open(folder / "w.yaml") as opened:
        opened.capture("q")
        before = opened.rewrite("q")
        append(folder, 5, 5)
        current = opened.rewrite("q")
        for version in (0, {"t": 0}):
            older = opened.rewrite("q", at=version)
            assert (older.sql, older.versions, older.action) == (before.sql, {"t": 0}, "kept")
        assert opened.rewrite("q", at=1).sql == opened.rewrite("q").sql == current.sql != before.sql
        with refused(RecaptureNeededError, "no_sketch_at", "no stored sketch for version 7"):
            opened.rewrite("q", at=7)


@pytest.mark.slow
def test_invalid_versions(folder: Path) -> None:
    invalid: list[Any] = [True, -1, 1.0, "x", {"t": None}, {"u": 0}, {}, []]
    with impctl.open(folder / "w.yaml") as opened:
        opened.capture("q")
        for version in invalid:
            with pytest.raises(UsageError) as caught:
                opened.rewrite("q", at=version)
            assert caught.value.code in ("at_syntax", "at_table_unknown"), version


@pytest.mark.slow
def test_every_call_uses_the_newest_versions(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    for version in (1, 2, 3):
        append(folder, 5)
        assert opened.rewrite("q").versions == {"t": version}
    text = (folder / "w.yaml").read_text()
    (folder / "w.yaml").write_text(text.replace("  none:\n", "  renamed:\n"))
    assert opened.queries == ("q", "many", "renamed")


def test_the_working_directory_does_not_matter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    opened = impctl.open("w.yaml", store="kept")
    monkeypatch.chdir("/")
    opened.capture("q")
    assert (folder / "kept").is_dir()


def test_errors_of_one_query_are_raised(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    with refused(RecaptureNeededError, "not_captured"):
        opened.maintain("q")
    with refused(UsageError, "query_unknown"):
        opened.status("qq")
    (folder / "w.yaml").write_text(
        (folder / "w.yaml").read_text().replace("SUM(x)", "SUM(missing)", 1)
    )
    with pytest.raises(QueryError) as caught:
        opened.capture("q")
    assert str(caught.value.location).startswith(f"{folder / 'w.yaml'}:11:")


def test_a_failed_query_does_not_affect_others(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q", "none")
    append(folder, 5, 5)
    with pytest.raises(QueriesFailedError) as caught:
        opened.maintain()
    failed = caught.value
    assert [(result.query, result.action) for result in failed.results] == [
        ("q", "exact"),
        ("none", "exact"),
    ]
    assert {name: error.code for name, error in failed.failures.items()} == {"many": "not_captured"}
    assert (failed.code, failed.exit_code) == ("queries_failed", 7)
    assert "1 of 3 queries failed (`many`)" in failed.message
    assert not opened.status("q")[0].stale


def test_warnings_point_to_the_caller(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened.capture("many")
        opened.rewrite(sql="SELECT MIN(x) FROM t")
    assert [(warning.category, warning.filename) for warning in caught] == [
        (ImpctlWarning, __file__)
    ] * 2
    assert "skips almost nothing" in str(caught[0].message)
    assert "runs without a sketch" in str(caught[1].message)


@pytest.mark.slow
@pytest.mark.parametrize("value", [15, "15"])
def test_values_become_typed_literals(folder: Path, value: Any) -> None:
    opened = impctl.open(folder / "w.yaml")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImpctlWarning)
        opened.capture("many")
        params = {"low": value, "word": "x' OR 1=1 --"}
        sql = opened.rewrite("many", params=params).sql
    assert "x >= 15" in sql
    assert "' OR" not in sql.replace("\\'", "")


@pytest.mark.parametrize(
    "value", [None, 1.5, True, Decimal(1), date(2024, 1, 1), "1 OR 1=1", 2**63, [1], float("nan")]
)
def test_values_of_another_type_are_refused(folder: Path, value: Any) -> None:
    opened = impctl.open(folder / "w.yaml")
    with refused(UsageError, "parameter_type"):
        opened.rewrite("many", params={"low": value})


def test_a_lock_held_elsewhere_is_an_error(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml", lock_timeout=0)
    opened.capture("q")
    with held_lock(folder / ".impctl"), pytest.raises(LockHeldError):
        opened.capture("q")


def test_threads_can_share_a_workload(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml", lock_timeout=0)
    opened.capture("q")
    append(folder, 5, 5)
    result: list[str] = []

    def maintain() -> None:
        result.append(opened.maintain("q")[0].action)

    threads = [threading.Thread(target=maintain) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result) == ["exact", "none", "none", "none"]


def test_arguments_override_variables_and_both_are_checked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMPCTL_STORE", str(folder / "variable"))
    monkeypatch.setenv("IMPCTL_POLICY", "strict")
    opened = impctl.open(folder / "w.yaml", policy="auto")
    assert [entry.policy for entry in opened.status("q")] == ["auto"]
    opened.capture("q")
    assert (folder / "variable").is_dir()
    monkeypatch.setenv("IMPCTL_BATCH_ROWS", "none")
    with pytest.raises(UsageError, match="IMPCTL_BATCH_ROWS"):
        opened.maintain("q")
    monkeypatch.setenv("IMPCTL_POLICY", "lax")
    with pytest.raises(UsageError, match="IMPCTL_POLICY") as caught:
        impctl.open(folder / "w.yaml")
    assert "strict" in str(caught.value.hint)
    with pytest.raises(UsageError, match="lock_timeout"):
        impctl.open(folder / "w.yaml", policy="auto", lock_timeout=-1)


def test_opening_an_invalid_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        impctl.open(tmp_path / "missing.yaml")
    (tmp_path / "w.yaml").write_text("version: 1\ntables: {}\nquries: {}\n")
    with pytest.raises(WorkloadError) as caught:
        impctl.open(tmp_path / "w.yaml")
    assert caught.value.problems


def test_a_closed_workload_and_an_invalid_session_are_refused(folder: Path) -> None:
    with impctl.open(folder / "w.yaml") as opened:
        pass
    with refused(UsageError, "workload_closed"):
        opened.status()
    with pytest.raises(UsageError, match="SparkSession"):
        impctl.open(folder / "w.yaml", spark="local[2]")  # type: ignore[arg-type]


def test_progress_is_reported_and_nothing_printed(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    reported: list[tuple[str, int, int]] = []
    opened = impctl.open(folder / "w.yaml", progress=lambda *step: reported.append(step))
    opened.capture("q")
    append(folder, 5)
    opened.maintain("q")
    assert reported
    assert all(isinstance(line, str) and number <= total for line, number, total in reported)
    assert capfd.readouterr() == ("", "")


def test_imports_are_lazy(folder: Path) -> None:
    program = (
        "import sys, impctl\n"
        "before = {name for name in sys.modules if name.startswith('impctl')}\n"
        "assert before == {'impctl', 'impctl.version'}, before\n"
        "assert 'open' in dir(impctl)\n"
        "with impctl.open(sys.argv[1]) as opened:\n"
        "    opened.capture('q'); opened.maintain('q'); opened.status(); opened.rewrite('q')\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    ran = python("-c", program, folder / "w.yaml")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_table_is_not_written(folder: Path) -> None:
    opened = impctl.open(folder / "w.yaml")
    opened.capture("q")
    opened.maintain("q")
    assert DeltaTable(str(folder / "t")).version() == 0


# The tables are too small for sketches to save anything.
@pytest.mark.filterwarnings("ignore:the sketch of query:impctl.ImpctlWarning")
def test_changes_as_arrow_and_in_files(tmp_path: Path) -> None:
    with impctl.open(write_workload(tmp_path, ("plain", "groups"))) as opened:
        opened.capture()
        whole = opened.changes("plain", whole=True)
        assert isinstance(whole, impctl.ChangesResult)
        before = applied(Counter(), whole.to_arrow())
        assert before == answer_at(tmp_path, "plain", {"a": 0})
        grow(tmp_path)
        changes = opened.changes("plain")
        assert (changes.since, changes.versions, changes.by) == ({"a": 0}, {"a": 1}, "state")
        assert changes.columns == ("_change", "_copies", "s", "d")
        current = answer_at(tmp_path, "plain", {"a": 1})
        assert applied(before, changes.to_arrow()) == current
        assert opened.changes("plain", since=0).row_count == changes.row_count
        results = opened.maintain(changes=tmp_path / "out")
        (path,) = results[0].change_files
        assert applied(before, pq.read_table(path)) == current
        assert opened.changes("plain").row_count == 0
        # A call without a folder writes nothing.
        grow(tmp_path)
        assert opened.maintain()[0].change_files == ()


@pytest.mark.filterwarnings("ignore:the sketch of query:impctl.ImpctlWarning")
def test_changes_need_a_materialized_result(tmp_path: Path) -> None:
    file = write_workload(tmp_path, ("plain",))
    file.write_text(file.read_text().replace("answer: true", "answer: false"))
    with impctl.open(file) as opened:
        opened.capture()
        with pytest.raises(UsageError, match="The result of query `plain` is not materialized"):
            opened.changes("plain")


ROOT = Path(__file__).parents[2]


def names_for_type_checkers() -> dict[str, str]:
    tree = ast.parse((ROOT / "impctl" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_names_are_the_same_at_run_time() -> None:
    for name, module in names_for_type_checkers().items():
        result = getattr(impctl, name)
        assert result is getattr(import_module(module), name)
        assert name in dir(impctl)
    with pytest.raises(AttributeError):
        impctl.opne  # type: ignore[attr-defined]  # noqa: B018


def test_every_name_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for name in names_for_type_checkers():
        assert f"`impctl.{name}`" in page


def test_every_error_is_in_the_docstring() -> None:
    docstring = str(errors.__doc__)
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ImpctlError | Warning):
            assert name in docstring, name


TRIGGERS = {
    "commit": "commit",
    "bound": "{fresh_within: 1h}",
    "five": "{rows: 5}",
    "nightly": "{point: nightly}",
    "night_too": "{point: nightly, cheap: true}",
    "noon": "{point: noon}",
    "used": "use",
}


@pytest.fixture
def trigger_workload(made_once: MadeOnce) -> Path:
    """A workload with a captured query per trigger; `q`, `many` and `none` are not captured."""
    return made_once.folder("triggers", write_and_capture) / "w.yaml"


def write_and_capture(folder: Path) -> None:
    write_folder(folder)
    file = folder / "w.yaml"
    head, _, tail = file.read_text().partition("store: .impctl")
    queries = "".join(
        f'  {name}: {{sql: "SELECT g, SUM(x) s FROM t GROUP BY g HAVING SUM(x) > {20 + number}", '
        f"sketch: {{t: g}}, policy: incremental, trigger: {trigger}}}\n"
        for number, (name, trigger) in enumerate(TRIGGERS.items())
    )
    file.write_text(f"{head}{queries}store: .impctl{tail}")
    with impctl.open(file) as opened:
        opened.capture(*TRIGGERS)


@pytest.fixture
def opened(trigger_workload: Path) -> Iterator[impctl.OpenWorkload]:
    with impctl.open(trigger_workload) as result:
        yield result


@pytest.fixture
def cli(trigger_workload: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capsys, trigger_workload)


def append_rows(file: Path, rows: int) -> None:
    write_deltalake(str(file.parent / "t"), ROWS.slice(0, rows), mode="append")


def set_clock(monkeypatch: pytest.MonkeyPatch, opened: impctl.OpenWorkload, seconds: float) -> None:
    """Set the time of later calls to `seconds` after the latest commit."""
    (due,) = opened.plan("bound", due=True)
    assert due.oldest_at is not None
    time = due.oldest_at + timedelta(seconds=seconds)
    monkeypatch.setenv("IMPCTL_NOW", time.strftime("%Y-%m-%dT%H:%M:%S+00:00"))


def maintained(results: tuple[impctl.MaintainResult, ...]) -> set[str]:
    return {result.query for result in results if result.action != "none"}


def test_due_queries_and_points_are_maintained(
    opened: impctl.OpenWorkload, trigger_workload: Path
) -> None:
    append_rows(trigger_workload, 3)
    results = opened.maintain(*TRIGGERS, due=True)
    assert [result.query for result in results] == list(TRIGGERS)
    assert maintained(results) == {"commit"}
    # With the next check in two hours, its bound would be exceeded.
    for interval in ("2h", 7_200):
        with pytest.warns(ImpctlWarning, match="fresh_impossible"):
            late = opened.maintain("bound", due=True, interval=interval, dry_run=True)
        assert maintained(late) == {"bound"}
    results = opened.maintain(point="nightly")
    assert [result.query for result in results] == ["nightly", "night_too"]
    assert maintained(results) == {"nightly", "night_too"}
    assert maintained(opened.maintain(point="nightly")) == set()


@pytest.mark.slow
def test_plans_equal_those_of_the_command_line(
    opened: impctl.OpenWorkload, trigger_workload: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_rows(trigger_workload, 5)
    set_clock(monkeypatch, opened, 30.0)
    due = opened.plan(*TRIGGERS, due=True)
    assert {entry.query for entry in due if entry.due} == {"commit", "five"}
    options = [word for name in TRIGGERS for word in ("--query", name)]
    assert to_json(due) == cli.good("plan", "--due", *options).results
    late = opened.plan("bound", due=True, interval="1h")
    assert to_json(late) == cli.good("plan", "--due", "--interval", "1h", *options[2:4]).results
    assert late[0].due
    # Forecasts and due times of an ordinary plan are the same too.
    plans = opened.plan(*TRIGGERS)
    assert to_json(plans) == cli.good("plan", *options).results
    assert {plan.query for plan in plans if plan.action == "exact"} == set(TRIGGERS)


def test_a_strict_plan_raises_errors(opened: impctl.OpenWorkload, trigger_workload: Path) -> None:
    text = trigger_workload.read_text()
    added = '  no_sketch: {sql: "SELECT * FROM t TABLESAMPLE (5 ROWS)"}\nstore: .impctl'
    trigger_workload.write_text(text.replace("store: .impctl", added))
    (result,) = opened.plan("no_sketch")
    assert (result.action, result.versions) == ("refused", {})
    with refused(ImpctlError, result.reason_code):
        opened.plan("no_sketch", strict=True)


def stable_json(result: impctl.SimulateResult) -> Any:
    """The result as JSON, without the value that depends on the time of the call."""
    document: Any = to_json(result)
    return {name: value for name, value in document.items() if name != "until"}


def test_simulations_equal_those_of_the_command_line(
    opened: impctl.OpenWorkload, trigger_workload: Path, cli: Cli
) -> None:
    append_rows(trigger_workload, 3)
    with pytest.warns(ImpctlWarning, match="figures are rough"):
        result = opened.simulate(
            "five", disk=["0", "all"], trigger="fresh_within: 10m", interval=30
        )
    assert [setting.trigger for setting in result.settings] == [None, *["fresh_within 10m"] * 2]
    assert result.look_s == 30.0
    options = ["--query", "five", "--disk", "0,all"]
    options += ["--trigger", "fresh_within: 10m", "--interval", "30s"]
    document = cli.one("simulate", *options)
    skipped = {"until", "settings", "recorded"}
    same = {name: value for name, value in document.items() if name not in skipped}
    assert {name: stable_json(result)[name] for name in same} == same
    assert [setting["setting"] for setting in document["settings"]] == [
        setting.setting for setting in result.settings
    ]
    with pytest.warns(ImpctlWarning) as warned:
        short = opened.simulate("five", since="30d")
    assert any("figures are rough" in str(warning.message) for warning in warned)
    assert short.rows == 3
    assert warned[0].filename == __file__


INVALID_CALLS: dict[str, tuple[Callable[[impctl.OpenWorkload], object], str, list[str]]] = {
    "two": (lambda o: o.maintain(due=True, point="noon"), "maintain", ["--due", "--point", "noon"]),
    "named": (lambda o: o.maintain("q", point="noon"), "maintain", ["--point=noon", "--query=q"]),
    "alone": (lambda o: o.maintain(interval="1m"), "maintain", ["--interval", "1m"]),
    "unknown": (lambda o: o.maintain(point="nigthly"), "maintain", ["--point", "nigthly"]),
    "look": (lambda o: o.plan(interval=60), "plan", ["--interval", "60"]),  # type: ignore[call-overload]
    "query": (lambda o: o.plan("qq", due=True), "plan", ["--due", "--query", "qq"]),
    "trigger": (
        lambda o: o.simulate(trigger="fresh_within: 10"),
        "simulate",
        ["--trigger", "fresh_within: 10"],
    ),
    "disk": (lambda o: o.simulate(disk=["1MB", "1XB"]), "simulate", ["--disk", "1MB,1XB"]),
    "nothing": (lambda o: o.simulate("q"), "simulate", ["--query", "q"]),
}


def test_errors_equal_those_of_the_command_line(opened: impctl.OpenWorkload, cli: Cli) -> None:
    for name, (call, command, options) in INVALID_CALLS.items():
        ran = cli(command, *options)
        with pytest.raises(ImpctlError) as caught:
            call(opened)
        error = caught.value
        expected = {"code": error.code, "message": error.message, "hint": error.hint}
        assert expected == {part: ran.error[part] for part in expected}, name
        assert to_json(error.location) == ran.error.get("location"), name
        assert ran.code == error.exit_code == 2, name


@pytest.mark.parametrize(
    "call",
    [
        lambda o: o.maintain(due=True, interval="soon"),
        lambda o: o.maintain(due=True, interval=-1),
        lambda o: o.plan(due=True, interval=float("nan")),
        lambda o: o.simulate(since=True),
        lambda o: o.simulate(trigger=[{"rows": 5}]),
        lambda o: o.simulate(disk=5),
    ],
)
def test_invalid_arguments_are_refused(
    opened: impctl.OpenWorkload, call: Callable[[Any], object]
) -> None:
    with pytest.raises(UsageError, match="Argument `") as caught:
        call(opened)
    assert caught.value.hint


def test_an_error_of_the_only_query_of_a_point(
    opened: impctl.OpenWorkload, trigger_workload: Path
) -> None:
    write_deltalake(
        str(trigger_workload.parent / "t"),
        pa.table({"g": [1], "note": ["z"]}, schema=ROWS.schema.remove(1)),
        mode="overwrite",
        schema_mode="overwrite",
    )
    with pytest.raises(ImpctlError) as single:
        opened.maintain(point="noon")
    assert not isinstance(single.value, QueriesFailedError)
    with pytest.raises(QueriesFailedError, match="2 of 2 queries") as several:
        opened.maintain(point="nightly")
    assert set(several.value.failures) == {"nightly", "night_too"}
    with pytest.raises(RecaptureNeededError):
        opened.maintain("q")
