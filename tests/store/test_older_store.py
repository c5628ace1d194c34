"""A store of an earlier release: today's code continues from it, or recaptures with a reason.

Each query of the archive is either maintained incrementally from its stored state, or recaptured
with a reason code that docs/troubleshooting.md explains. Whatever happens, sketches equal those of
a fresh capture, and results equal DuckDB's. `tests.store.older.pack` wrote the archive.
"""

from __future__ import annotations

import shutil
import sqlite3
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import zip_longest
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from msgspec.structs import replace

from impctl.data.pages import whole_table
from impctl.store.records import MaintainCommit, Run
from impctl.store.store import Store
from tests.store.older.pack import HERE, STARTS, append, delete
from tests.support.diagrams import HAS_DIAGRAMS
from tests.support.run_cli import Cli

ARCHIVE = Path(__file__).parent / "older" / "b255fb3d.tar.gz"
REASON_CODES = Path(__file__).parents[2] / "docs" / "troubleshooting.md"
CONTINUES = "incremental"
QUERIES = "grouping extremes first_rows join tree answer ranks absorption best_rows levels"
TODAY = dict.fromkeys(QUERIES.split(), CONTINUES)
"""What today's code does with the stored state of each query of the archive.

Code that can no longer use a query's state must recapture it once and report a reason code. Write
that code here. Do not relax anything else in this test.
"""


RECAPTURED = {name: code for name, code in TODAY.items() if code != CONTINUES}

pytestmark = pytest.mark.skipif(not HERE.exists(), reason=f"the archive's tables are in {HERE}")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The archive, unpacked in the working directory."""
    with tarfile.open(ARCHIVE) as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / ".impctl").chmod(0o700)  # independent of the umask; others must not write a store
    (tmp_path / ".impctl" / "state").chmod(0o700)
    monkeypatch.chdir(tmp_path)
    return Cli(capsys, tmp_path / "workload.yaml")


class Stored:
    """The queries of the unpacked store, and how today's code treats them."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        workload = yaml.safe_load(cli.workload.read_text())
        assert workload["queries"].keys() == TODAY.keys()
        if not HAS_DIAGRAMS:
            del workload["queries"]["absorption"]
        self.tables = tuple(workload["tables"])
        self.sql = {name: query["sql"] for name, query in workload["queries"].items()}
        self.by = {
            name: "state" if query.get("answer") else "engine"
            for name, query in workload["queries"].items()
        }
        self.warnings: list[str] = []
        self._recaptured: set[str] = set()
        self._before = {name: len(runs) for name, runs in self._runs().items()}

    def maintain(self) -> set[str]:
        """The reason codes of the results."""
        return {result["reason_code"] for result in self._run("maintain", self.sql)}

    def answers(self, *methods: str) -> dict[str, Counter[tuple[object, ...]]]:
        """The rows of each query answered by one of these methods."""
        some = [(name, by) for name, by in self.by.items() if by in methods]
        results = [self._run("query", [name], "--by", by)[0] for name, by in some]
        return {result["query"]: Counter(map(tuple, result["rows"])) for result in results}

    def answers_by_duckdb(self) -> dict[str, Counter[tuple[object, ...]]]:
        """The same rows, computed without impctl."""
        with duckdb.connect() as connection:
            for table in self.tables:
                connection.register(table, DeltaTable(str(HERE / table)).to_pyarrow_table())
            rows = {name: connection.execute(sql).fetchall() for name, sql in self.sql.items()}
        return {name: Counter(result) for name, result in rows.items()}

    def sketches(self, *arguments: str) -> dict[str, object]:
        """The sketches of each query, with versions and row counts of its tables."""
        return {
            result["query"]: (
                result["versions"],
                sorted(result["sketches"], key=str),
                sorted((ranges["table"], ranges["rows"]) for ranges in result["ranges"]),
            )
            for result in self.cli.good("status", *_only(self.sql), *arguments).results
        }

    def fresh_sketches(self) -> dict[str, object]:
        """The sketches of a new capture into another store."""
        self.cli.good("capture", *_only(self.sql), "--store", "fresh")
        return self.sketches("--store", "fresh")

    def recaptures(self) -> dict[str, list[str]]:
        """Reason codes of recaptures since the archive; checks that all other runs continued."""
        new = {name: runs[: len(runs) - self._before[name]] for name, runs in self._runs().items()}
        others = {run for runs in new.values() for run in runs if run[0] != "recapture"}
        assert others == {("exact", CONTINUES)}
        return {
            name: [code for action, code in runs if action == "recapture"]
            for name, runs in new.items()
        }

    def _runs(self) -> dict[str, list[tuple[str, str]]]:
        """Actions and reason codes in the history of each query, newest first."""
        return {
            result["query"]: [(run["action"], run["reason_code"]) for run in result["runs"]]
            for result in self.cli.good("status", *_only(self.sql), "--runs", "100").results
        }

    def _run(self, command: str, names: Iterable[str], *arguments: str) -> list[dict[str, Any]]:
        """Run a command. Recaptures are allowed only as listed in `TODAY`, and once per query."""
        allowed = RECAPTURED.keys() - self._recaptured
        results = []
        for policy, some in (
            ("strict", [name for name in names if name not in allowed]),
            ("auto", [name for name in names if name in allowed]),
        ):
            if some:
                run = self.cli.good(command, *_only(some), *arguments, "--policy", policy)
                self.warnings += run.document["warnings"]
                results += run.results
        self._recaptured |= {one["query"] for one in results if one["action"] == "recapture"}
        return results


def _only(names: Iterable[str]) -> list[str]:
    return [word for name in names for word in ("--query", name)]


def grow() -> None:
    """Insert many sales of old and new shops, and links from all nodes ever reached."""
    shops = [3, 3, 3, 3, 45, 45, 45, 61, *range(0, 60, 7)]
    numbers = range(len(shops))
    columns: dict[str, list[Any]] = {
        "id": [600 + number for number in numbers],
        "shop": shops,
        "product": [number % 13 for number in numbers],
        "amount": [70 + number for number in numbers],
        "weight": [None if number == 1 else number / 4 for number in numbers],
        "note": ["new"] * len(shops),
    }
    append("sales", pa.table(columns))
    append("shops", pa.table({"shop": [60, 61], "city": ["city0", None]}))
    leads = [(stem + start, 400 + stem + start) for stem in (100, 200, 300) for start in STARTS]
    leads += [(start, 70 + number) for start in STARTS for number in (0, 2)]
    append("links", pa.table({"src": [src for src, _ in leads], "dst": [dst for _, dst in leads]}))


def shrink() -> None:
    """Delete all sales of a range, some of most shops, some shops, and old and new links."""
    delete("sales", "shop BETWEEN 18 AND 23 OR shop = 61 OR id % 9 = 4")
    delete("shops", "shop IN (3, 24, 27, 45, 57)")
    delete("links", "dst > 100 AND dst < 200 OR src = 70 OR src % 6 = 2")


def test_queries_continue_or_are_recaptured(cli: Cli) -> None:
    stored = Stored(cli)
    answers = stored.answers_by_duckdb()
    assert stored.answers("state").items() <= answers.items()
    assert RECAPTURED or stored.maintain() == {"up_to_date"}

    grow()
    assert "up_to_date" not in stored.maintain()
    assert stored.sketches() == stored.fresh_sketches()
    grown = stored.answers("state", "engine")
    assert grown == stored.answers_by_duckdb()
    assert not [name for name in grown if grown[name] == answers[name]]

    shrink()
    shrunk = stored.answers("state", "engine")  # a query maintains first
    assert shrunk == stored.answers_by_duckdb()
    assert not [name for name in shrunk if shrunk[name] == grown[name]]
    assert stored.sketches() == stored.fresh_sketches()

    assert stored.recaptures() == {
        name: [RECAPTURED[name]] if name in RECAPTURED else [] for name in stored.sql
    }
    warnings = "\n".join(stored.warnings)
    assert not [name for name in stored.sql if name in RECAPTURED and f"`{name}`" not in warnings]


def test_reasons_for_recaptures_are_documented() -> None:
    page = REASON_CODES.read_text(encoding="utf-8")
    assert not [code for code in RECAPTURED.values() if f"| `{code}` |" not in page]


def test_unsupported_formats_are_refused_unchanged(cli: Cli) -> None:
    stored = Stored(cli)
    sketches = stored.sketches()
    cli.good("capture", "--query", "grouping", "--store", "fresh")
    known, archived = _format("fresh"), _format(".impctl")
    _set_format(known + 1)
    newer = _contents()
    for command in ("status", "maintain", "query", "rewrite", "capture"):
        refused = cli(command, "--query", "grouping")
        assert (refused.code, refused.error["code"]) == (2, "store_format_newer")
        assert refused.error["hint"]
    assert _contents() == newer
    _set_format(8)
    refused = cli("status", "--query", "grouping")
    assert (refused.code, refused.error["code"]) == (2, "store_format_older")
    assert "supports formats from 9" in refused.error["message"]
    _set_format(archived)
    assert stored.sketches() == sketches


def _format(store: str) -> int:
    with closing(sqlite3.connect(Path(store) / "catalog.sqlite")) as connection:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _set_format(number: int) -> None:
    with closing(sqlite3.connect(Path(".impctl") / "catalog.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {number}")


def _contents() -> dict[str, bytes]:
    """All files of the store except locks and SQLite's files of an open catalog."""
    files = [path for path in Path(".impctl").rglob("*") if path.is_file()]
    kept = [path for path in files if not path.name.startswith(("lock", "catalog.sqlite-"))]
    return {str(path): path.read_bytes() for path in kept}


@pytest.mark.slow
@pytest.mark.parametrize("step", [12, pytest.param(1, marks=pytest.mark.long)])
def test_unknown_state_entries_are_state_corrupt(cli: Cli, step: int) -> None:
    """Single state entries are missing, renamed or of another type."""
    if not HAS_DIAGRAMS:
        pytest.skip("the state of `absorption` cannot be loaded")
    shutil.copytree(".impctl", "whole")
    grow()
    with Store.open(Path(".impctl")) as store:
        cases = [list(_altered(store, query)) for query in TODAY]
    assert sum(map(len, cases)) > 200
    for some in [*zip_longest(*cases)][::step]:
        commits = [commit for commit in some if commit is not None]
        shutil.rmtree(".impctl")
        shutil.copytree("whole", ".impctl")
        with Store.open(Path(".impctl")) as store:
            for commit in commits:
                store.commit_maintain(commit)
        altered = {commit.query: commit.record.reason for commit in commits}
        run = cli("maintain", *_only(altered), "--policy", "incremental")
        failures = run.error.get("failures", [{"query": commits[0].query, **run.error}])
        codes = {failure["query"]: failure["code"] for failure in failures}
        assert (run.code, codes) == (7, dict.fromkeys(altered, "state_corrupt")), altered


def _altered(store: Store, query: str) -> Iterator[MaintainCommit]:
    """Commits that alter one entry each, named in the record's reason."""
    stored = store.load(query)
    assert stored is not None
    (record,) = store.history(query, 1)

    def commit(
        label: str, meta: Mapping[str, Any], drop: tuple[tuple[str, int], ...] = (), *put: Run
    ) -> MaintainCommit:
        return MaintainCommit(
            query=query,
            expected_generation=stored.generation,
            pins=stored.pins,
            record=replace(record, reason=label),
            put_runs=put,
            drop_runs=drop,
            state_meta=meta,
            basis=meta,
        )

    meta = stored.state_meta
    for name in meta["counters"]:
        others = {other: n for other, n in meta["counters"].items() if other != name}
        yield commit(f"without {name}", {**meta, "counters": others})
    yield commit("one counter more", {**meta, "counters": {**meta["counters"], "other": 1}})
    for name, runs in store.load_runs(query).items():
        sequence, table = runs[0][0], whole_table(runs[0][1])
        yield commit(f"{name} renamed", meta, ((name, sequence),), (f"{name}s", sequence, table))
        more = table.append_column("other", pa.array(range(len(table)), pa.int64()))
        yield commit(f"{name} with a column more", meta, (), (name, sequence, more))
        for position, column in enumerate(table.column_names):
            names = [f"{one}s" if one == column else one for one in table.column_names]
            renamed = table.rename_columns(names)
            yield commit(f"{name}.{column} renamed", meta, (), (name, sequence, renamed))
            texts = pa.array([str(value) for value in table.column(position).to_pylist()])
            retyped = table.set_column(position, column, texts)
            yield commit(f"{name}.{column} as text", meta, (), (name, sequence, retyped))
