"""A table, a workload with one query over it, what policies make of a change, and what is right."""

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
    """The sketches cover, and the query over them gives what it gives over the table.

    Returns the slack: fragments beyond the accurate ones.
    """
    delta = DeltaTable(str(path), version=stored.versions["t"])
    schema = read_schema(delta.schema().to_json(), is_mapped=False).schema
    root = parse_query(sql, {"t": schema}).root
    names = list(dict.fromkeys(a.name for scan in root.scans for a in scan.attributes))
    names += [s.attribute for s in stored.sketches if s.attribute not in names]
    rows = pa.table(delta.scan(columns=names)).to_pylist()
    # To the Delta protocol, and so to Spark, an empty partition value is NULL; not to deltalake.
    empty = delta.metadata().partition_columns
    tables = {
        "t": [{n: None if n in empty and row[n] == "" else row[n] for n in names} for row in rows]
    }
    partitions = {s.access: (s.attribute, tuple(s.partition.boundaries)) for s in stored.sketches}
    accurate = accurate_sketches(annotate(root, tables), root, tables, partitions)
    held = {s.access: set(s.ranges.ids) for s in stored.sketches}
    assert held, "a query without a sketch proves nothing"
    for access, wanted in accurate.items():
        assert wanted <= held[access], (access, wanted, held[access])
    seen = instances_of(root, tables, partitions, held)
    assert bag(evaluate(root, tables, seen)) == bag(evaluate(root, tables))
    return sum(len(held[access] - wanted) for access, wanted in accurate.items())


ROWS = pa.table(
    [
        [0, 0, 0, 1, 3, 3, 3, 5, 5, 7, None],
        [5, 15, 25, 5, 5, 15, 25, 5, 9, 15, 25],
        [*"abcdefghijk"],
    ],
    schema=pa.schema({"g": pa.int32(), "x": pa.int32(), "note": pa.string()}),
)


def more(group: int | None = 5, rows: int = 3, x: int | None = 1) -> pa.Table:
    """Rows of one group: three of group 5 bring it over the limit."""
    return pa.table([[group] * rows, [x] * rows, ["z"] * rows], schema=ROWS.schema)


KEYED = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2 AND SUM(x) > 10"
SHOWN = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2"
"""Here `x` is only shown: no sketch depends on it."""

GROUPS = {"g": [2, 4, 6]}
POLICIES = ("strict", "incremental", "full", "auto")


class Place(Struct, frozen=True):
    """Everything of one case."""

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

    def last(self) -> RunRecord:
        """What history says of the latest action."""
        with Store.open(self.store, create=False) as store:
            return store.history("q", 1)[0]

    def check_sound(self) -> int:
        """At the newest version, and sound there; returns the slack."""
        stored = self.stored()
        assert stored.versions == {"t": self.delta.version()}
        return check_sound(stored, self.sql, self.table)

    def captured(self) -> Place:
        """The sketch captured at the newest version, by the engine or by Spark."""
        self.cli.good("capture")
        self.check_sound()
        return self

    def append(self, group: int | None = 5, rows: int = 3, x: int | None = 1) -> None:
        """One more version; with the defaults, group 5 passes."""
        write_deltalake(str(self.table), more(group, rows, x), mode="append")

    def replace_by(self, other: Path) -> None:
        """Another folder takes the table's place."""
        shutil.rmtree(self.table)
        shutil.move(other, self.table)

    def entry(self, version: int) -> Path:
        """The log entry of a version."""
        return log_entry(self.table, version)

    def forget(self, *, keep: int) -> None:
        """Clean the log: a checkpoint at the newest version, entries before `keep` removed."""
        self.delta.create_checkpoint()
        for entry in (self.table / "_delta_log").glob("*.json"):
            if int(entry.stem) < keep:
                entry.unlink()

    def under_each_policy(self) -> dict[str, Ran]:
        """`maintain` under each policy, always from the store as it is now."""
        kept = self.folder / "kept"
        shutil.copytree(self.store, kept)
        result = {}
        for policy in POLICIES:
            shutil.rmtree(self.store)
            shutil.copytree(kept, self.store)
            result[policy] = self.maintained(policy)
        shutil.rmtree(kept)
        return result

    def maintained(self, policy: str, *, is_exact: bool = False) -> Ran:
        """`maintain` under a policy, and what holds of every run; `is_exact`: without slack."""
        before = _contents(self.store)
        ran = self.cli("maintain", "--policy", policy)
        if ran.code == 0:
            slack = self.check_sound()
            assert not (is_exact and slack)
            (result,), last = ran.results, self.last()
            assert (last.reason_code, last.action) == (result["reason_code"], result["action"])
        else:
            assert _contents(self.store) == before
            assert ran.error["hint"], ran.error
            assert "\n" not in ran.error["message"]
        return ran


def make_place(
    folder: Path,
    capsys: Capsys,
    *,
    sql: str = KEYED,
    sketch: str | None = "g",
    ranges: Mapping[str, Sequence[object]] = GROUPS,
    **more: object,
) -> Place:
    """A workload file beside a table `t` that is or will be there; `more` is said of the query."""
    query = {"sql": sql, **({} if sketch is None else {"sketch": {"t": sketch}}), **more}
    partitions = {"t": {name: {"boundaries": [*values]} for name, values in ranges.items()}}
    return Place(folder, sql, Cli.asking(capsys, folder, {"q": query}, partitions=partitions))


def expect_carried(place: Place, *, changes: int | None = None) -> Ran:
    """The strictest policy maintains exactly, with no slack."""
    ran = place.maintained("strict", is_exact=True)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("exact", "incremental"), result
    assert changes is None or result["changes"] == changes
    return ran


def expect_recapture(place: Place, code: str, *words: str) -> None:
    """`incremental` ends with 7, `auto` recaptures and says so, with no slack."""
    refused = place.maintained("incremental")
    assert refused.refusal == (7, code)
    assert "impctl capture" in refused.error["hint"]
    ran = place.maintained("auto", is_exact=True)
    assert ran.code == 0, ran.document
    (result,) = ran.results
    assert (result["action"], result["reason_code"]) == ("recapture", code), result
    (warning,) = ran.document["warnings"]
    assert named_before("q", result["reason"]) in warning
    for word in words:
        assert word in result["reason"]
        assert word in refused.error["message"]


def expect_refused(place: Place, exit_code: int, code: str, *words: str) -> None:
    """Neither maintaining nor recapturing helps: the same error, and the store as it was."""
    for policy in ("auto", "full"):
        ran = place.maintained(policy)
        assert ran.refusal == (exit_code, code), (policy, ran.document)
        for word in words:
            assert word in ran.error["message"], ran.error


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file, but for the lock and SQLite's working files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("lock", "catalog.sqlite-"))
    }
