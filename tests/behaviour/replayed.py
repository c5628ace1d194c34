"""Random commits to a table of whatever columns: what goes comes again, and some come changed.

Law: all is drawn from the generator given, so that a seed names a run; a table stays about as large
as it was, and a row that is added has values that the table had in each of its columns, or NULL.

`python -m tests.behaviour.replayed WORKLOAD FOLDER [--batches 50] [--every 10]` keeps the answers
of the workload's queries in a store below FOLDER, changes its tables (they are written to: give
copies), maintains after every batch, and prints the results.

Law: Spark alone says what the answer is: it runs the workload's text over the files of the tables,
and no part of impctl reads or writes anything for it. Equal are Arrow types, rows as bags (doubles
within 1e-9), and, where the query has an order, the values it goes by, row by row; of rows that tie
where a LIMIT cuts, each answer may have others. A table named in the SQL is a file list of Parquet.

Every few batches another process maintains, as after a restart, and removes what is no longer
needed; the process that ran before continues from there.
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
"""A table of fewer rows gets no copies once it has grown: joined ones would multiply."""


class RandomBatches:
    """Commits to the table at `path`; about `few` rows go and come with each."""

    def __init__(self, path: str, rng: Random, few: int) -> None:
        self._path, self._rng = path, rng
        self._first = DeltaTable(path).count()
        self._few = max(1, min(few, self._first // 10))
        self._gone: pa.Table | None = None

    def commit(self) -> None:
        """Rows that went with the last batch and copies with other values come; others go."""
        table = DeltaTable(self._path)
        some = self._some_rows(table)
        is_grown = self._first < _SMALL and table.count() > self._first
        coming = [] if is_grown else [self._mixed(some)]
        coming += [] if self._gone is None else [self._gone]
        self._gone = self._taken(table, some)
        if coming:
            write_deltalake(self._path, pa.concat_tables(coming), mode="append")

    def _some_rows(self, table: DeltaTable) -> pa.Table:
        """Rows of one row group of one file."""
        schema = pa.schema(table.schema())
        file = pq.ParquetFile(self._rng.choice(sorted(table.file_uris())))
        group = file.read_row_group(self._rng.randrange(file.num_row_groups)).cast(schema)
        count = min(self._few, group.num_rows)
        return group.take(sorted(self._rng.sample(range(group.num_rows), count)))

    def _taken(self, table: DeltaTable, some: pa.Table) -> pa.Table | None:
        """What goes: all rows with half of these values of the first column of numbers or texts."""
        name = next(one.name for one in some.schema if _is_listed(one.type))
        column = pc.drop_null(some[name])
        values = pc.unique(column.slice(0, max(1, self._few // 2))).to_pylist()
        if not values:
            return None
        wanted = pa.array(values, some.schema.field(name).type)
        gone = pa.concat_tables(
            _rows_with(file, name, wanted, some.schema) for file in table.file_uris()
        )
        listed = ", ".join(map(_literal, values))
        table.delete(f'"{name}" IN ({listed})')
        return gone

    def _mixed(self, rows: pa.Table) -> pa.Table:
        """The rows, with each other's values in some columns, and NULL in others that may."""
        columns = []
        for own_field, column in zip(rows.schema, rows.columns, strict=True):
            if self._rng.random() < 0.3:
                places = [*range(len(rows))]
                self._rng.shuffle(places)
                column = column.take(places)
            elif own_field.nullable and self._rng.random() < 0.1:
                kept = [self._rng.random() < 0.9 for _ in range(len(rows))]
                column = pc.if_else(pa.array(kept), column, pa.scalar(None, own_field.type))
            columns.append(column)
        return pa.Table.from_arrays(columns, schema=rows.schema)


def _rows_with(file: str, name: str, values: pa.Array, schema: pa.Schema) -> pa.Table:
    """The rows of one file with one of these values in the column."""
    if pa.types.is_integer(values.type):
        return pq.read_table(file, schema=schema, filters=pc.field(name).isin(values))
    # Arrow compares no views of texts, as files have them.
    rows = pq.read_table(file).cast(schema)
    return rows.filter(pc.is_in(rows[name], value_set=values))


def _is_listed(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_string(kind)


def _literal(value: object) -> str:
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    assert isinstance(value, int), value
    return str(value)


_WAYS = (AnsweredBy.STATE, AnsweredBy.ENGINE)


class Tally(Struct, dict=True):
    """What a run came to; `cannot` by query, `wrong` in words."""

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
        """Lines for who reads it."""
        yield f"{self.queries} queries, {self.batches} batches, {self.restarts} restarts"
        yield f"maintained {dict(self.actions)}"
        yield f"equal {dict(self.equal)}, of these with rows {dict(self.rows)}"
        yield f"failing as Spark does {dict(self.both_fail)}, not told {dict(self.unsure)}"
        yield f"milliseconds {dict(self.milliseconds)}"
        yield from (f"cannot: {name}: {why}" for name, why in sorted(self.cannot.items()))
        yield f"wrong: {len(self.wrong)}"
        yield from (f"wrong: {one}" for one in self.wrong)


RESTART = 10
"""Every so many batches another process maintains."""
_COMMAND = "import sys; from impctl.cli.main import main; sys.exit(main())"


class Replay:
    """A workload with a store of its own, whose tables change."""

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
        """The first sketches; which queries have none, and why."""
        with self._ctx() as ctx:
            outcome = capture(ctx, None)
        for failure in outcome.failures:
            self.tally.cannot[f"{failure.query} (sketch)"] = failure.error.message
        for warning in outcome.warnings:
            if "not kept" in warning:
                self.tally.cannot[f"{warning.split('`')[1]} (state)"] = warning
        kept = [one.query for one in outcome.results if isinstance(one, CaptureResult)]
        self.sketched = [name for name in self.queries if name in kept]

    def batch(self) -> None:
        """One commit or two to every table, and all queries brought up to date, by another process
        now and then."""
        self.tally.batches += 1
        for batches in self._batches:
            batches.commit()
        if self.tally.batches % RESTART == 0:
            self.tally.restarts += 1
            which = [part for name in self.sketched for part in ("--query", name)]
            document = self._command("maintain", *which, "--policy", "incremental")
            for result in document["results"]:
                self.tally.actions[result["action"]] += 1
            if not document["ok"]:
                self._command("maintain", *which, "--policy", "auto")
            self._command("gc", "--keep", "1")
            return
        with self._ctx(Policy.INCREMENTAL) as ctx:
            outcome = maintain(ctx, self.sketched)
        left = [one.query for one in outcome.failures if one.query is not None]
        for failure in outcome.failures:
            self.tally.actions[f"{failure.query} not by the engine ({failure.error.code})"] += 1
        for result in outcome.results:
            assert isinstance(result, MaintainResult)
            self.tally.actions[result.action] += 1
        if left:
            with self._ctx(Policy.AUTO) as ctx:
                outcome = maintain(ctx, left)
            assert not outcome.failures, outcome.failures

    def _command(self, name: str, *words: str) -> dict[str, Any]:
        """The document of a process of its own."""
        command = [name, str(self._file), "--store", str(self._store), "--json", *words]
        called = [sys.executable, "-P", "-c", _COMMAND, *command]
        ran = subprocess.run(called, capture_output=True, text=True, check=False)
        assert ran.returncode in (0, 7), ran.stderr
        document: dict[str, Any] = json.loads(ran.stdout)
        return document

    def compare(self) -> None:
        """Every query by state and by the engine, against Spark."""
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
            watch = time.monotonic()
            wanted = self._sparks(prepared)
            self.tally.milliseconds["spark"] += round(1000 * (time.monotonic() - watch))
            for by in _WAYS if name in self.sketched else _WAYS[1:]:
                self._compare(name, by, prepared, wanted)

    def _sparks(self, prepared: PreparedQuery) -> pa.Table | None:
        """What Spark answers; None where it fails."""
        from pyspark.errors import PySparkException

        try:
            return self._spark.sql(prepared.bound.sql).toArrow()
        except PySparkException:
            return None

    def _compare(
        self, name: str, by: AnsweredBy, prepared: PreparedQuery, wanted: pa.Table | None
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
            known = tally.both_fail if wanted is None else tally.unsure
            known[f"{label}: {error.code}"] += 1
            return
        tally.milliseconds[str(by)] += round(result.elapsed_ms)
        if wanted is None:
            tally.wrong.append(f"{label} after {tally.batches} batches: Spark fails, this does not")
            return
        difference = differ(prepared, result.answer, wanted)
        if difference:
            tally.wrong.append(f"{label} after {tally.batches} batches: {difference}")
            return
        tally.equal[str(by)] += 1
        tally.rows[str(by)] += bool(len(wanted))


def copy_with(source: Path, folder: Path) -> Path:
    """A copy of the workload file beside it, whose queries keep their answers."""
    folder.mkdir(parents=True, exist_ok=True)
    text = source.read_text(encoding="utf-8")
    assert "\nqueries:\n" in text
    assert "\ndefaults:" not in text
    text = text.replace("\nqueries:\n", "\ndefaults: {answer: true}\nqueries:\n", 1)
    copy = source.with_name(f".{source.stem}-{folder.name}.yaml")
    copy.write_text(text, encoding="utf-8")
    return copy


def spark_by_hand() -> Any:
    """The session of a replay that is run from the command line."""
    from impctl.spark.session import SparkSettings, open_session

    conf = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "4"}
    return open_session(SparkSettings("local[2]", conf))


def differ(prepared: PreparedQuery, result: pa.Table, wanted: pa.Table) -> str:
    """In which way two answers of the query differ; empty where they do not."""
    types = [[one.type for one in table.schema] for table in (result, wanted)]
    if types[0] != types[1]:
        return f"types {types[0]}, not {types[1]}"
    mine, theirs = rows_of(result), rows_of(wanted)
    keys, is_cut = _order(prepared)
    if keys and not _same_list(mine, theirs, keys):
        return f"order: {_shown(mine)}, not {_shown(theirs)}"
    if same_rows(mine, theirs):
        return ""
    if not is_cut or not keys or len(mine) != len(theirs) or not mine:
        return f"rows: {_shown(mine)}, not {_shown(theirs)}"
    # Of the rows that tie with the last one any may be there.
    last = [[row[at] for at in keys] for row in (mine[-1],)]
    inner = [
        [row for row in rows if not same_rows([[row[at] for at in keys]], last)]
        for rows in (mine, theirs)
    ]
    return "" if same_rows(*inner) else f"rows: {_shown(mine)}, not {_shown(theirs)}"


def _order(prepared: PreparedQuery) -> tuple[list[int], bool]:
    """Places of the columns that the answer is ordered by, from the first, as far as they are put
    out; and whether it is cut."""
    ending = answer_plan(prepared.planned).ending
    places = []
    shown = [one.expr for one in ending.outputs]
    for key in ending.order:
        if key.expr not in shown:
            return places, False
        places.append(shown.index(key.expr))
    return places, ending.is_cut


Rows = Sequence[Sequence[Any]]


def _same_list(mine: Rows, theirs: Rows, keys: Sequence[int]) -> bool:
    """Whether rows have the same values of the columns they are ordered by, one by one."""
    pairs = zip(mine, theirs, strict=False)
    return len(mine) == len(theirs) and all(
        same_rows([[one[at] for at in keys]], [[other[at] for at in keys]]) for one, other in pairs
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
    """The tally of so many batches; answers are compared after every few and at the end, and
    `tell` hears of each time."""
    number = 0
    file = copy_with(source, folder)
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
    """Replay as the command line says, and print what came of it each time it is compared."""
    parser = ArgumentParser()
    parser.add_argument("source", metavar="workload", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--few", type=int, default=40, help="rows of a change, about")
    asked = vars(parser.parse_args())
    done = replayed(spark=spark_by_hand(), tell=_printed, **asked)
    sys.exit(bool(done.wrong))


def _printed(tally: Tally) -> None:
    sys.stdout.write("\n".join(tally.told()) + "\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
