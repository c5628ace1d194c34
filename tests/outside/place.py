"""A table, a workload with one query over it, and what policies make of a change to it.

Law: a run that is refused leaves the store as it was, and after every other one the sketch is held
against the table.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from impctl.service.text import named_before
from impctl.store.records import RunRecord, StoredQuery
from impctl.store.store import Store
from tests.outside.oracle import check_sound
from tests.outside.rows import more
from tests.support.run_cli import Cli, Ran

KEYED = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2 AND SUM(x) > 10"
SHOWN = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g HAVING COUNT(*) > 2"
"""Here `x` is only shown: no sketch depends on it."""

_WORKLOAD = """\
version: 1
tables:
  t: {{path: t}}
{partitions}
queries:
  q:
    sql: >-
      {sql}
{sketch}
store: .impctl
spark: {{master: "local[2]"}}
"""

POLICIES = ("strict", "incremental", "full", "auto")


@dataclass(frozen=True)
class Place:
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
        with Store.open(self.store, create=False) as store:
            result = store.load("q")
        assert result is not None
        return result

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
        return self.table / "_delta_log" / f"{version:020}.json"

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
            (result,) = ran.results
            assert self.last().reason_code == result["reason_code"]
            assert self.last().action == result["action"]
        else:
            assert _contents(self.store) == before
            assert ran.error["hint"], ran.error
            assert "\n" not in ran.error["message"]
        return ran


def make_place(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    sql: str = KEYED,
    sketch: str | None = "g",
    ranges: str | None = "g: {boundaries: [2, 4, 6]}",
    more: str = "",
) -> Place:
    """A workload file beside a table `t` that is or will be there; `more` is said of the query."""
    file = folder / "w.yaml"
    file.write_text(
        _WORKLOAD.format(
            sql=sql,
            partitions="" if ranges is None else f"partitions:\n  t:\n    {ranges}",
            sketch="" if sketch is None else f"    sketch: {{t: {sketch}}}\n    {more}",
        )
    )
    return Place(folder, sql, Cli(capsys, file))


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
    assert (refused.code, refused.error["code"]) == (7, code), refused.document
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
        assert (ran.code, ran.error["code"]) == (exit_code, code), (policy, ran.document)
        for word in words:
            assert word in ran.error["message"], ran.error


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file, but for the lock and SQLite's working files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("lock", "catalog.sqlite-"))
    }
