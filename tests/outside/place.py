"""A table, a workload with one query over it, and a store that is put back for every policy.

Law: a case captures once, changes the table or the store, and then sees each policy start from
exactly the same files.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from impctl.app.results.subject import named_before
from impctl.store.records import RunRecord, StoredQuery
from impctl.store.store import Store
from tests.outside.oracle import check_sound
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
    looked_at: tuple[str, ...] = POLICIES
    """Policies after which the sketch is held against the table; fewer where that takes long."""

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
            found = store.load("q")
        assert found is not None
        return found

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

    def under_each_policy(self) -> dict[str, Ran]:
        """`maintain` under each policy, always from the store as it is now."""
        kept = self.folder / "kept"
        shutil.copytree(self.store, kept)
        found = {}
        for policy in POLICIES:
            shutil.rmtree(self.store)
            shutil.copytree(kept, self.store)
            found[policy] = self._maintained(policy)
        shutil.rmtree(kept)
        return found

    def _maintained(self, policy: str) -> Ran:
        before = _contents(self.store)
        ran = self.cli("maintain", "--policy", policy)
        if ran.code == 0:
            if policy in self.looked_at:
                self.check_sound()
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
) -> Place:
    """A workload file beside a table `t` that is or will be there."""
    file = folder / "w.yaml"
    file.write_text(
        _WORKLOAD.format(
            sql=sql,
            partitions="" if ranges is None else f"partitions:\n  t:\n    {ranges}",
            sketch="" if sketch is None else f"    sketch: {{t: {sketch}}}",
        )
    )
    return Place(folder, sql, Cli(capsys, file))


def expect_carried(place: Place, *, changes: int | None = None) -> dict[str, Ran]:
    """All policies but `full` maintain exactly, with no slack."""
    found = place.under_each_policy()
    for policy in ("strict", "incremental", "auto"):
        (result,) = _good(found[policy]).results
        assert (result["action"], result["reason_code"]) == ("exact", "incremental"), policy
        assert changes is None or result["changes"] == changes
    _expect_full(found["full"])
    assert place.check_sound() == 0
    return found


def expect_recapture(
    place: Place, code: str, *words: str, full: str = "policy_full"
) -> dict[str, Ran]:
    """`auto` recaptures and says so, `incremental` ends with 7, `strict` with 4."""
    found = place.under_each_policy()
    (result,) = _good(found["auto"]).results
    assert (result["action"], result["reason_code"]) == ("recapture", code), result
    (warning,) = found["auto"].document["warnings"]
    assert named_before("q", result["reason"]) in warning
    refused = found["incremental"]
    assert (refused.code, refused.error["code"]) == (7, code), refused.document
    strict = found["strict"]
    assert (strict.code, strict.error["code"]) == (4, "policy_refused"), strict.document
    for word in words:
        assert word in result["reason"]
        assert word in refused.error["message"]
        assert word in strict.error["message"]
    assert "impctl capture" in refused.error["hint"]
    _expect_full(found["full"], full)
    return found


def expect_refused(place: Place, exit_code: int, code: str, *words: str) -> dict[str, Ran]:
    """No policy can help: the same error under all of them, and the store as it was."""
    found = place.under_each_policy()
    for policy, ran in found.items():
        assert (ran.code, ran.error["code"]) == (exit_code, code), (policy, ran.document)
        for word in words:
            assert word in ran.error["message"], ran.error
    return found


def _expect_full(ran: Ran, code: str = "policy_full") -> None:
    (result,) = _good(ran).results
    assert (result["action"], result["reason_code"]) == ("recapture", code)


def _good(ran: Ran) -> Ran:
    assert ran.code == 0, ran.document
    return ran


def _contents(folder: Path) -> dict[str, bytes]:
    """Every file, but for the lock and SQLite's working files."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(("lock", "catalog.sqlite-"))
    }
