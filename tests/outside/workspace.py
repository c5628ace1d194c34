"""A table with a workload of one query, the effects of policies on a change, and their checks."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct

from impctl.service.text import named_before
from impctl.sql.statement import parse_query
from impctl.store.records import RunRecord, StoredQuery
from impctl.store.store import Store
from impctl.tables.snapshot import read_schema
from tests.plan.trials import accurate_sketches, instances_of
from tests.support.kept_workload import log_entry, stored
from tests.support.reference_plan import annotate, bag, evaluate
from tests.support.run_cli import Capsys, Cli, Ran


def check_sound(stored: StoredQuery, sql: str, path: Path) -> int:
    """The sketches cover the accurate ones, and the filtered query gives the same rows.

    Returns the slack: the number of ranges beyond the accurate ones.
    """
    delta = DeltaTable(str(path), version=stored.versions["t"])
    schema = read_schema(delta.schema().to_json(), is_mapped=False).schema
    root = parse_query(sql, {"t": schema}).root
    names = list(dict.fromkeys(a.name for scan in root.scans for a in scan.attributes))
    names += [s.attribute for s in stored.sketches if s.attribute not in names]
    rows = pa.table(delta.scan(columns=names)).to_pylist()
    # The Delta protocol and Spark treat an empty partition value as NULL; deltalake does not.
    partition_columns = delta.metadata().partition_columns
    tables = {
        "t": [
            {n: None if n in partition_columns and row[n] == "" else row[n] for n in names}
            for row in rows
        ]
    }
    partitions = {s.access: (s.attribute, tuple(s.partition.boundaries)) for s in stored.sketches}
    accurate = accurate_sketches(annotate(root, tables), root, tables, partitions)
    stored_ranges = {s.access: set(s.ranges.ids) for s in stored.sketches}
    assert stored_ranges, "the query has no sketch"
    for access, expected in accurate.items():
        assert expected <= stored_ranges[access], (access, expected, stored_ranges[access])
    visible = instances_of(root, tables, partitions, stored_ranges)
    assert bag(evaluate(root, tables, visible)) == bag(evaluate(root, tables))
    return sum(len(stored_ranges[access] - expected) for access, expected in accurate.items())


ROWS = pa.table(
    [
        [0, 0, 0, 1, 3, 3, 3, 5, 5, 7, None],
        [5, 15, 25, 5, 5, 15, 25, 5, 9, 15, 25],
        [*"abcdefghijk"],
    ],
    schema=pa.schema({"g": pa.int32(), "x": pa.int32(), "note": pa.string()}),
)


def more(group: int | None = 5, rows: int = 3, x: int | None = 1) -> pa.Table:
    """Rows of one group; three rows of group 5 bring it over the limit."""
    return pa.table([[group] * rows, [x] * rows, ["z"] * rows], schema=ROWS.schema)


KEYED = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2 AND SUM(x) > 10"
SHOWN = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2"
"""`x` is only in the output: no sketch depends on it."""

GROUPS = {"g": [2, 4, 6]}
POLICIES = ("strict", "incremental", "full", "auto")


class Workspace(Struct, frozen=True):
    """A folder with a table `t`, a workload of one query, and its store."""

    folder: Path
    sql: str
    cli: Cli

    @property
    def table(self) -> Path:
        return self.folder / "t"

    @property
    def delta(self) -> DeltaTable:
        """The newest version."""
        return DeltaTable(str(self.table))

    @property
    def store(self) -> Path:
        return self.folder / ".impctl"

    def stored(self) -> StoredQuery:
        return stored(self.folder, "q")

    def last_run(self) -> RunRecord:
        """The latest run in the history."""
        with Store.open(self.store, create=False) as store:
            return store.history("q", 1)[0]

    def check_sound(self) -> int:
        """The sketch is sound and at the newest version; returns the slack."""
        stored = self.stored()
        assert stored.versions == {"t": self.delta.version()}
        return check_sound(stored, self.sql, self.table)

    def capture(self) -> Workspace:
        """Capture the sketch at the newest version."""
        self.cli.good("capture")
        self.check_sound()
        return self

    def append(self, group: int | None = 5, rows: int = 3, x: int | None = 1) -> None:
        """Append rows; with the defaults, group 5 passes."""
        write_deltalake(str(self.table), more(group, rows, x), mode="append")

    def replace_by(self, other: Path) -> None:
        """Replace the table by another folder."""
        shutil.rmtree(self.table)
        shutil.move(other, self.table)

    def entry(self, version: int) -> Path:
        """The log entry of a version."""
        return log_entry(self.table, version)

    def clean_log(self, *, keep: int) -> None:
        """Write a checkpoint at the newest version, and delete log entries before `keep`."""
        self.delta.create_checkpoint()
        for entry in (self.table / "_delta_log").glob("*.json"):
            if int(entry.stem) < keep:
                entry.unlink()

    def under_each_policy(self) -> dict[str, Ran]:
        """Run `maintain` under each policy, each time from the current store."""
        saved = self.folder / "kept"
        shutil.copytree(self.store, saved)
        result = {}
        for policy in POLICIES:
            shutil.rmtree(self.store)
            shutil.copytree(saved, self.store)
            result[policy] = self.maintain(policy)
        shutil.rmtree(saved)
        return result

    def maintain(self, policy: str, *, is_exact: bool = False) -> Ran:
        """Run `maintain` under a policy, and check it; `is_exact`: without slack."""
        before = _contents(self.store)
        ran = self.cli("maintain", "--policy", policy)
        if ran.code == 0:
            slack = self.check_sound()
            assert not (is_exact and slack)
            (result,), last_run = ran.results, self.last_run()
            assert (last_run.reason_code, last_run.action) == (
                result["reason_code"],
                result["action"],
            )
        else:
            assert _contents(self.store) == before
            assert ran.error["hint"], ran.error
            assert "\n" not in ran.error["message"]
        return ran


def make_workspace(
    folder: Path,
    capsys: Capsys,
    *,
    sql: str = KEYED,
    sketch: str | None = "g",
    ranges: Mapping[str, Sequence[object]] = GROUPS,
    **options: object,
) -> Workspace:
    """Write a workload file for the table `t`; `options` are more settings of the query."""
    query = {"sql": sql, **({} if sketch is None else {"sketch": {"t": sketch}}), **options}
    partitions = {"t": {name: {"boundaries": [*values]} for name, values in ranges.items()}}
    return Workspace(folder, sql, Cli.asking(capsys, folder, {"q": query}, partitions=partitions))


def expect_exact(workspace: Workspace, *, changes: int | None = None) -> Ran:
    """`strict` maintains exactly, without slack."""
    ran = workspace.maintain("strict", is_exact=True)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("exact", "incremental"), result
    assert changes is None or result["changes"] == changes
    return ran


def expect_recapture(workspace: Workspace, code: str, *texts: str) -> None:
    """`incremental` ends with 7; `auto` recaptures with a warning and without slack."""
    refused = workspace.maintain("incremental")
    assert refused.refusal == (7, code)
    assert "impctl capture" in refused.error["hint"]
    ran = workspace.maintain("auto", is_exact=True)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("recapture", code), result
    (warning,) = ran.document["warnings"]
    assert named_before("q", result["reason"]) in warning
    for text in texts:
        assert text in result["reason"]
        assert text in refused.error["message"]


def expect_refused(workspace: Workspace, exit_code: int, code: str, *texts: str) -> None:
    """Neither maintaining nor recapturing helps: both give the error and keep the store."""
    for policy in ("auto", "full"):
        ran = workspace.maintain(policy)
        assert ran.refusal == (exit_code, code), (policy, ran.document)
        for text in texts:
            assert text in ran.error["message"], ran.error


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file except the lock and SQLite's working files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("lock", "catalog.sqlite-"))
    }
