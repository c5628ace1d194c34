"""Random commits to tables with any columns: deleted rows are inserted again, some modified.

Law: a seed determines a run, because everything is drawn from the given generator. A table keeps
about its size, and an inserted row has values that its columns had before, or NULL.

`python -m tests.behaviour.replayed WORKLOAD FOLDER [--batches 50] [--every 10]` materializes the
results of the workload's queries in a store below FOLDER, changes its tables (they are written to:
use copies), maintains after every batch, and prints the outcome.

Law: only Spark determines the expected results. It runs the workload's SQL over the Parquet files
of the tables, without any part of impctl. Results are equal if they have the same Arrow types, the
same rows as bags (doubles within 1e-9), and, if the query has an ORDER BY, the same sort keys row
by row. If a LIMIT cuts between tied rows, results may have different ones of them.

Every few batches another process maintains, as after a restart, and collects garbage. The first
process continues from there.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from msgspec import Struct, field

from impctl.errors import EvaluationError, ImpctlError, NotExactError, QueryError, UsageError
from impctl.rules.finalize import answer_plan
from impctl.service.capture import capture
from impctl.service.context import Context, Memory, SessionBeside, open_context
from impctl.service.maintain import maintain
from impctl.service.prepare import PreparedQuery, prepare
from impctl.service.query import query
from impctl.service.results import CaptureResult, MaintainResult, QueryResult, rows_of
from impctl.service.settings import QueryRequest, Settings
from impctl.service.verify import same_rows
from impctl.workload.models import AnsweredBy, Policy

_SMALL = 100
"""Smaller tables get no modified copies once they have grown, as joined rows would multiply."""


class RandomBatches:
    """Commits to the table at `path` that delete and insert about `few` rows each."""

    def __init__(self, path: str, rng: Random, few: int) -> None:
        self._path, self._rng = path, rng
        self._first = DeltaTable(path).count()
        self._few = max(1, min(few, self._first // 10))
        self._deleted: pa.Table | None = None

    def commit(self) -> None:
        """Insert the rows deleted by the last batch and modified copies; delete other rows."""
        table = DeltaTable(self._path)
        rows = self._some_rows(table)
        is_grown = self._first < _SMALL and table.count() > self._first
        inserted = [] if is_grown else [self._shuffled(rows)]
        inserted += [] if self._deleted is None else [self._deleted]
        self._deleted = self._delete_rows(table, rows)
        if inserted:
            write_deltalake(self._path, pa.concat_tables(inserted), mode="append")

    def _some_rows(self, table: DeltaTable) -> pa.Table:
        """Rows of one row group of one file."""
        schema = pa.schema(table.schema())
        file = pq.ParquetFile(self._rng.choice(sorted(table.file_uris())))
        group = file.read_row_group(self._rng.randrange(file.num_row_groups)).cast(schema)
        count = min(self._few, group.num_rows)
        return group.take(sorted(self._rng.sample(range(group.num_rows), count)))

    def _delete_rows(self, table: DeltaTable, rows: pa.Table) -> pa.Table | None:
        """Delete and return the rows with some values of the first integer or string column."""
        name = next(one.name for one in rows.schema if _is_listed(one.type))
        column = pc.drop_null(rows[name])
        values = pc.unique(column.slice(0, max(1, self._few // 2))).to_pylist()
        if not values:
            return None
        deleted_values = pa.array(values, rows.schema.field(name).type)
        deleted = pa.concat_tables(
            _rows_with(file, name, deleted_values, rows.schema) for file in table.file_uris()
        )
        listed = ", ".join(map(_literal, values))
        table.delete(f'"{name}" IN ({listed})')
        return deleted

    def _shuffled(self, rows: pa.Table) -> pa.Table:
        """The rows, with some columns shuffled and some values of nullable columns set to NULL."""
        columns = []
        for field_, column in zip(rows.schema, rows.columns, strict=True):
            if self._rng.random() < 0.3:
                order = [*range(len(rows))]
                self._rng.shuffle(order)
                column = column.take(order)
            elif field_.nullable and self._rng.random() < 0.1:
                is_kept = [self._rng.random() < 0.9 for _ in range(len(rows))]
                column = pc.if_else(pa.array(is_kept), column, pa.scalar(None, field_.type))
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=rows.schema)


def _rows_with(file: str, name: str, values: pa.Array, schema: pa.Schema) -> pa.Table:
    """The rows of one file with one of these values in the column."""
    if pa.types.is_integer(values.type):
        return pq.read_table(file, schema=schema, filters=pc.field(name).isin(values))
    # Arrow cannot compare the string views of the files.
    rows = pq.read_table(file).cast(schema)
    return rows.filter(pc.is_in(rows[name], value_set=values))


def _is_listed(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind)


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    assert isinstance(value, int), value
    return str(value)


_ANSWERED_BY = (AnsweredBy.STATE, AnsweredBy.ENGINE)


class Tally(Struct, dict=True):
    """The outcome of a run; `cannot` by query, `wrong` as messages."""

    queries: int
    batches: int = 0
    restarts: int = 0
    actions: Counter[str] = field(default_factory=Counter)
    equal: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    unsure: Counter[str] = field(default_factory=Counter)
    both_fail: Counter[str] = field(default_factory=Counter)
    milliseconds: Counter[str] = field(default_factory=Counter)
    cannot: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def told(self) -> Iterator[str]:
        """A summary as lines of text."""
        yield f"{self.queries} queries, {self.batches} batches, {self.restarts} restarts"
        yield f"maintained {dict(self.actions)}"
        yield f"equal {dict(self.equal)}, of these with rows {dict(self.rows)}"
        yield f"failing as Spark does {dict(self.both_fail)}, not told {dict(self.unsure)}"
        yield f"milliseconds {dict(self.milliseconds)}"
        yield from (f"cannot: {name}: {why}" for name, why in sorted(self.cannot.items()))
        yield f"wrong: {len(self.wrong)}"
        yield from (f"wrong: {one}" for one in self.wrong)


RESTART = 10
"""After this many batches, another process maintains."""
_COMMAND = "import sys; from impctl.cli.main import main; sys.exit(main())"


class Replay:
    """A workload with a separate store, whose tables change."""

    def __init__(self, file: Path, folder: Path, spark: Any, seed: int, few: int) -> None:
        self._file, self._store, self._spark = file, folder / "store", spark
        self._sessions = SessionBeside(spark)
        self._memory = Memory()
        self.sketched: list[str] = []
        with self._ctx() as ctx:
            self._paths = {name: one.path for name, one in ctx.workload.tables.items()}
            self.queries = list(ctx.workload.queries)
        self._batches = [
            RandomBatches(path, Random(f"{seed} {name}"), few) for name, path in self._paths.items()
        ]
        self.tally = Tally(len(self.queries))

    @contextmanager
    def _ctx(self, policy: Policy | None = None) -> Iterator[Context]:
        settings = Settings(self._file, store=self._store, policy=policy, lock_timeout=60)
        with (
            self._sessions.visit(),
            open_context(settings, sessions=self._sessions, memory=self._memory) as ctx,
        ):
            yield ctx

    def captured(self) -> None:
        """Capture all queries, and record which ones fail and why."""
        with self._ctx() as ctx:
            outcome = capture(ctx, None)
        for failure in outcome.failures:
            self.tally.cannot[f"{failure.query} (sketch)"] = failure.error.message
        for warning in outcome.warnings:
            if "not kept" in warning:
                self.tally.cannot[f"{warning.split('`')[1]} (state)"] = warning
        captured = [one.query for one in outcome.results if isinstance(one, CaptureResult)]
        self.sketched = [name for name in self.queries if name in captured]

    def batch(self) -> None:
        """Commit once or twice to every table, then maintain all queries, sometimes in another
        process."""
        self.tally.batches += 1
        for batches in self._batches:
            batches.commit()
        if self.tally.batches % RESTART == 0:
            self.tally.restarts += 1
            names = [part for name in self.sketched for part in ("--query", name)]
            document = self._command("maintain", *names, "--policy", "incremental")
            for result in document["results"]:
                self.tally.actions[result["action"]] += 1
            if not document["ok"]:
                self._command("maintain", *names, "--policy", "auto")
            self._command("gc", "--keep", "1")
            return
        with self._ctx(Policy.INCREMENTAL) as ctx:
            outcome = maintain(ctx, self.sketched)
        failed = [one.query for one in outcome.failures if one.query is not None]
        for failure in outcome.failures:
            self.tally.actions[f"{failure.query} not by the engine ({failure.error.code})"] += 1
        for result in outcome.results:
            assert isinstance(result, MaintainResult)
            self.tally.actions[result.action] += 1
        if failed:
            with self._ctx(Policy.AUTO) as ctx:
                outcome = maintain(ctx, failed)
            assert not outcome.failures, outcome.failures

    def _command(self, name: str, *words: str) -> dict[str, Any]:
        """The JSON document of a separate process."""
        command = [name, str(self._file), "--store", str(self._store), "--json", *words]
        arguments = [sys.executable, "-P", "-c", _COMMAND, *command]
        ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
        assert ran.returncode in (0, 7), ran.stderr
        document: dict[str, Any] = json.loads(ran.stdout)
        return document

    def compare(self) -> None:
        """Compare the results of every query from the state and by the engine with Spark's."""
        for table, path in self._paths.items():
            frame = self._spark.read.parquet(*DeltaTable(path).file_uris())
            frame.createOrReplaceTempView(table)
        for name in self.queries:
            try:
                with self._ctx() as ctx:
                    prepared = prepare(ctx, ctx.queries([name])[0])
            except ImpctlError as error:
                self.tally.cannot[f"{name} (not read)"] = error.message
                continue
            started = time.monotonic()
            expected = self._sparks(prepared)
            self.tally.milliseconds["spark"] += round(1000 * (time.monotonic() - started))
            for by in _ANSWERED_BY if name in self.sketched else _ANSWERED_BY[1:]:
                self._compare(name, by, prepared, expected)

    def _sparks(self, prepared: PreparedQuery) -> pa.Table | None:
        """Spark's result; None if it fails."""
        from pyspark.errors import PySparkException

        try:
            return self._spark.sql(prepared.bound.sql).toArrow()
        except PySparkException:
            return None

    def _compare(
        self, name: str, by: AnsweredBy, prepared: PreparedQuery, expected: pa.Table | None
    ) -> None:
        tally, label = self.tally, f"{name} ({by})"
        try:
            with self._ctx() as ctx:
                (result,) = query(ctx, QueryRequest(name), by).results
            assert isinstance(result, QueryResult)
            assert result.by == by
        except (UsageError, QueryError) as error:
            if error.code not in ("answer_not_kept", "engine_cannot"):
                raise
            tally.cannot.setdefault(label, error.message)
            return
        except (EvaluationError, NotExactError) as error:
            failures = tally.both_fail if expected is None else tally.unsure
            failures[f"{label}: {error.code}"] += 1
            return
        tally.milliseconds[str(by)] += round(result.elapsed_ms)
        if expected is None:
            tally.wrong.append(f"{label} after {tally.batches} batches: Spark fails, this does not")
            return
        difference = differ(prepared, result.answer, expected)
        if difference:
            tally.wrong.append(f"{label} after {tally.batches} batches: {difference}")
            return
        tally.equal[str(by)] += 1
        tally.rows[str(by)] += bool(len(expected))


def copy_workload(source: Path, folder: Path) -> Path:
    """Copy the workload file beside itself, with materialized results for all queries."""
    folder.mkdir(parents=True, exist_ok=True)
    text = source.read_text(encoding="utf-8")
    assert "\nqueries:\n" in text
    assert "\ndefaults:" not in text
    text = text.replace("\nqueries:\n", "\ndefaults: {answer: true}\nqueries:\n", 1)
    copy = source.with_name(f".{source.stem}-{folder.name}.yaml")
    copy.write_text(text, encoding="utf-8")
    return copy


def spark_session() -> Any:
    """A Spark session for a replay started from the command line."""
    from impctl.spark.session import SparkSettings, open_session

    conf = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}
    return open_session(SparkSettings("local[2]", conf))


def differ(prepared: PreparedQuery, result: pa.Table, expected: pa.Table) -> str:
    """How two results of the query differ; empty if they do not."""
    types = [[one.type for one in table.schema] for table in (result, expected)]
    if types[0] != types[1]:
        return f"types {types[0]}, not {types[1]}"
    ours, theirs = rows_of(result), rows_of(expected)
    keys, is_cut = _order(prepared)
    if keys and not _same_list(ours, theirs, keys):
        return f"order: {_shown(ours)}, not {_shown(theirs)}"
    if same_rows(ours, theirs):
        return ""
    if not is_cut or not keys or len(ours) != len(theirs) or not ours:
        return f"rows: {_shown(ours)}, not {_shown(theirs)}"
    # Any of the rows that tie with the last one may be in a result.
    last = [[row[index] for index in keys] for row in (ours[-1],)]
    inner = [
        [row for row in rows if not same_rows([[row[index] for index in keys]], last)]
        for rows in (ours, theirs)
    ]
    return "" if same_rows(*inner) else f"rows: {_shown(ours)}, not {_shown(theirs)}"


def _order(prepared: PreparedQuery) -> tuple[list[int], bool]:
    """Positions of the leading sort keys that are output columns, and whether the result is
    limited."""
    ending = answer_plan(prepared.planned).ending
    positions = []
    outputs = [one.expr for one in ending.outputs]
    for key in ending.order:
        if key.expr not in outputs:
            return positions, False
        positions.append(outputs.index(key.expr))
    return positions, ending.is_cut


Rows = Sequence[Sequence[Any]]


def _same_list(ours: Rows, theirs: Rows, keys: Sequence[int]) -> bool:
    """Whether the rows have the same sort keys, one by one."""
    pairs = zip(ours, theirs, strict=False)
    return len(ours) == len(theirs) and all(
        same_rows([[one[index] for index in keys]], [[other[index] for index in keys]])
        for one, other in pairs
    )


def _shown(rows: Sequence[object]) -> str:
    return f"{len(rows)} rows {str(rows[:3])[:400]}"


def replayed(
    source: Path,
    folder: Path,
    spark: Any,
    batches: int,
    every: int,
    *,
    seed: int = 1,
    few: int = 40,
    tell: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """The tally after this many batches. Results are compared after `every` batches and at the end,
    with a call of `tell` each time."""
    number = 0
    file = copy_workload(source, folder)
    try:
        replay = Replay(file, folder, spark, seed, few)
        replay.captured()
        for number in range(1, batches + 1):
            replay.batch()
            if number % every == 0 or number == batches:
                replay.compare()
                tell(replay.tally)
    except ImpctlError as error:
        error.add_note(f"seed {seed}, batch {number} of {source.name}")
        raise
    finally:
        file.unlink()
    return replay.tally


def main() -> None:
    """Replay as the command line says, and print the tally after each comparison."""
    parser = ArgumentParser()
    parser.add_argument("source", metavar="workload", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--few", type=int, default=40, help="rows of a change, about")
    arguments = vars(parser.parse_args())
    tally = replayed(spark=spark_session(), tell=_print_tally, **arguments)
    sys.exit(bool(tally.wrong))


def _print_tally(tally: Tally) -> None:
    sys.stdout.write("\n".join(tally.told()) + "\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
