"""Which rows of a query's result were inserted and deleted by a step."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from msgspec import Struct

from impctl.compile.answers import answer_rows, arrow_column, arrow_type, kept_rows
from impctl.compile.compile import MaintenancePlan, compile_answer
from impctl.compile.flows import typed
from impctl.compile.session import MaintainedQuery, TouchedQuery
from impctl.data.keys import group_rows
from impctl.data.vector import Bools, Ints, Vector, concat
from impctl.engine.batch import Batch, empty_batch, identity_of
from impctl.engine.extremes import OrderKey, exact_ranks
from impctl.errors import EvaluationError, NotExactError, RecaptureNeededError, UsageError
from impctl.expr.error_bounds import exactly
from impctl.expr.evaluate import Condition, Evaluator
from impctl.expr.nodes import Expr
from impctl.service.maintenance_plan import is_same_circuit
from impctl.service.output import check_output, not_written, whole_file
from impctl.service.prepare import prepare
from impctl.service.stored import check_definition, stored_moments
from impctl.store.disk import sync_entries

if TYPE_CHECKING:
    from impctl.engine.result_rows import AnswerRows
    from impctl.rules.finalize import FinalSteps
    from impctl.service.context import Context, Versions
    from impctl.store.reader import StoreReader
    from impctl.store.records import StoredQuery
    from impctl.types import AttributeId, QueryName
    from impctl.workload.models import QuerySpec


# Changes of an answer, from its rows. Law: applied to the old answer, the changes give the new one,
# row for row and copy for copy; no absent row is deleted. Rows are equal if all output values are,
# each rounded once: 0.0 is not -0.0, NaN is NaN. Deleted rows come first, each part sorted by its
# columns. A row is sure if no order of the query's floating-point sums changes it: by error bounds
# if rows have them; else if no column is such a sum.

CHANGE, COPIES, SURE = "_change", "_copies", "_sure"
"""The columns for the kind of change, the number of copies, and whether it is certain."""

INSERT, DELETE = "insert", "delete"

NO_ROWS = empty_batch(0)
"""Source versions of a whole answer."""


def changes_by_rows(
    ending: FinalSteps, change: Batch, bounded: Collection[AttributeId], zone: str
) -> pa.Table:
    """Changes of an uncut answer from those of the materialized rows, with their bounds."""
    assert not ending.is_cut, "what is cut is compared"
    change = _netted(change)
    values = {name: exactly(column) for name, column in change.columns.items()}
    is_in, unsure = np.ones(len(change), dtype=np.bool_), np.zeros(len(change), dtype=np.bool_)
    for predicate in ending.predicates:
        if len(change):
            unsure |= _unsure_outcomes(predicate, change)
            is_in &= Condition(predicate).truth(values, len(change)).sure_true()
    for output in ending.outputs:
        if len(change):
            unsure |= _unsure_values(output.expr, change)
    rows = Batch(values, change.weights, ()).keep(is_in)
    return _output_rows([RowsOf(ending, rows)], unsure[is_in] if bounded else None, zone)


class RowsOf(Struct, frozen=True):
    """Materialized rows, how the answer is made of them, and which columns may have bounds."""

    ending: FinalSteps
    rows: Batch
    bounded: frozenset[AttributeId] = frozenset()

    @classmethod
    def kept(cls, ending: FinalSteps, rows: AnswerRows | None) -> Self:
        """All rows that a circuit keeps of the answer."""
        assert rows is not None, "the circuit keeps the rows of its answer"
        return cls(ending, rows.whole(), rows.bounded)


def changes_between(before: RowsOf, after: RowsOf, zone: str) -> pa.Table:
    """The changes from one answer to another of the same columns."""
    old, new = (answer_rows(side.ending, side.rows) for side in (before, after))
    unsure = np.ones(len(old) + len(new), dtype=np.bool_) if after.bounded else None
    deleted = Batch(old.columns, -old.weights, old.tags)
    return _output_rows([RowsOf(before.ending, deleted), RowsOf(after.ending, new)], unsure, zone)


def whole_answer(after: RowsOf, zone: str) -> pa.Table:
    """The answer as changes from nothing."""
    return changes_between(RowsOf(after.ending, NO_ROWS), after, zone)


def _output_rows(parts: Sequence[RowsOf], unsure: Bools | None, zone: str) -> pa.Table:
    """The summed rows in the columns of the last part."""
    outputs = parts[-1].ending.outputs
    filled = [part for part in parts if len(part.rows)]
    types = typed((output.attribute for output in outputs), None)
    arrow_types = [arrow_type(kind, zone) for _, kind in types]
    if filled:
        values, weights, unsure = _consolidated(filled, unsure)
        unit_weights = np.ones(len(weights), dtype=np.int64)
        pairs = zip(values, arrow_types, strict=True)
        columns = [arrow_column(column, unit_weights, kind) for column, kind in pairs]
    else:
        columns = [pa.array([], kind) for kind in arrow_types]
        weights, unsure = np.zeros(0, np.int64), None if unsure is None else np.zeros(0, np.bool_)
    head = {CHANGE: pa.array(np.where(weights < 0, DELETE, INSERT), pa.string())}
    head[COPIES] = pa.array(np.abs(weights), pa.int64())
    if unsure is not None:
        head[SURE] = pa.array(~unsure, pa.bool_())
    names = [output.attribute.name for output in outputs]
    return pa.Table.from_arrays([*head.values(), *columns], names=[*head, *names])


def _consolidated(
    parts: Sequence[RowsOf], unsure: Bools | None
) -> tuple[Sequence[Vector], Ints, Bools | None]:
    """Output columns with one NaN, each row once with its sum, in order; `unsure` if asked."""
    length = sum(len(part.rows) for part in parts)
    weights = np.concatenate([part.rows.weights for part in parts])
    values = [
        [
            _same_nan(Evaluator(output.expr).values(part.rows.columns, len(part.rows)))
            for output in part.ending.outputs
        ]
        for part in parts
    ]
    columns = [concat(list(same)) for same in zip(*values, strict=True)]
    grouping = group_rows([identity_of(column) for column in columns], length)
    sums = np.add.reduceat(weights[grouping.order], grouping.starts)
    left = np.flatnonzero(sums)
    first, sums = grouping.first[left], sums[left]
    if unsure is not None:
        unsure = np.logical_or.reduceat(unsure[grouping.order], grouping.starts)[left]
    columns = [column.take(first) for column in columns]
    # Deletes before inserts, each sorted by its columns. Where values tie, as 0.0 and -0.0 do,
    # their bits decide.
    key = OrderKey("", descending=False, nulls_first=True)
    keys = [vector for column in columns for vector in (column, identity_of(column))]
    order = np.lexsort([*(exact_ranks(vector, key) for vector in keys[::-1]), np.sign(sums)])
    columns = [column.take(order) for column in columns]
    return columns, sums[order], None if unsure is None else unsure[order]


def _same_nan(column: Vector) -> Vector:
    """The column without bounds, with one NaN."""
    if not column.type.is_fractional:
        return column
    values = np.where(np.isnan(column.values), np.nan, column.values)
    return Vector(column.type, values, column.valid)


def _netted(change: Batch) -> Batch:
    """Each row once, with its widest bounds; rows that cancel are dropped."""
    if not len(change):
        return change
    columns = change.columns
    grouping = group_rows([identity_of(column) for column in columns.values()], len(change))
    sums = np.add.reduceat(change.weights[grouping.order], grouping.starts)
    left = np.flatnonzero(sums)
    result = {}
    for name, column in columns.items():
        values = exactly(column).take(grouping.first[left])
        error = None
        if column.error is not None:
            error = np.maximum.reduceat(column.error[grouping.order], grouping.starts)[left]
        result[name] = Vector(values.type, values.values, values.valid, error)
    return Batch(result, sums[left], ())


def _unsure_outcomes(predicate: Expr, rows: Batch) -> Bools:
    if not bool(_has_bound(predicate, rows).any()):
        return np.zeros(len(rows), dtype=np.bool_)
    try:
        return Condition(predicate).truth(rows.columns, len(rows)).is_unsure
    except (NotExactError, EvaluationError):
        return _has_bound(predicate, rows)


def _unsure_values(expr: Expr, rows: Batch) -> Bools:
    bounded = _has_bound(expr, rows)
    if not bool(bounded.any()):
        return bounded
    try:
        value = Evaluator(expr).values(rows.columns, len(rows))
    except (NotExactError, EvaluationError):
        return bounded
    if value.error is None:
        return np.zeros(len(rows), dtype=np.bool_)
    return np.asarray((value.error != 0) & value.validity(), dtype=np.bool_)


def _has_bound(expr: Expr, rows: Batch) -> Bools:
    result = np.zeros(len(rows), dtype=np.bool_)
    for name in expr.columns:
        column = rows.columns[name]
        if column.error is not None:
            result |= (column.error != 0) & column.validity()
    return result


# Law: changes are those of the very rows that a commit has, against the commit before. A query
# whose rows are not materialized before or after is refused before anything is done.


WriteChanges = Callable[["CommitInfo", pa.Table], object]
"""Takes the changes of one commit, before it is made."""


class ChangeWriter:
    """Writes the changes of one query's answer, step by step."""

    def __init__(
        self, write: WriteChanges, zone: str, plan: MaintenancePlan, before: FinalSteps | None
    ) -> None:
        """`plan` is the steps' maintenance; `before` is the answer before the first step if another
        one, because that step follows the clock."""
        assert plan.answer is not None
        assert plan.compiled is not None
        assert plan.compiled.kept is not None
        self._write, self._zone = write, zone
        self._kept, self._ending = plan.compiled.kept, plan.answer.ending
        self._ending_before = self._ending if before is None else before
        self._before: RowsOf | None = None
        """The answer before the step, if the two are compared."""
        self._change: Batch | None = None
        self.has_begun = False

    def begin(self) -> None:
        """Note the rows before a step."""
        before, after, kept = self._ending_before, self._ending, self._kept
        self._before = self._change = None
        if after.is_cut or before is not after:
            # The rows under the names of the answer of the circuit that stored them.
            rows, names = kept.whole(), [name for name, _ in kept_rows(before).columns]
            values = [rows.columns[name] for name, _ in kept.columns] if len(rows) else []
            columns = dict(zip(names, values, strict=True)) if values else {}
            self._before = RowsOf(before, Batch(columns, rows.weights, ()))
        kept.note()
        self._ending_before, self.has_begun = after, True

    def write(self, stored: StoredQuery, until: Versions, moments: Mapping[str, str]) -> None:
        """Write the changes of the step from `stored` to these versions, before its commit."""
        self._write(lead_of(stored, until, moments), self._changes())

    def rows_before(self) -> Batch:
        """The stored rows before the last step, which may have failed."""
        return self._kept.before(self._noted()) if self.has_begun else self._kept.whole()

    def _changes(self) -> pa.Table:
        change, kept = self._noted(), self._kept
        if self._before is None:
            return changes_by_rows(self._ending, change, kept.bounded, self._zone)
        return changes_between(self._before, RowsOf.kept(self._ending, kept), self._zone)

    def _noted(self) -> Batch:
        if self._change is None:
            self._change = self._kept.noted()
        return self._change


def recapture_changes(
    query: QueryName,
    before: RowsOf,
    plan: MaintenancePlan,
    state: MaintainedQuery | TouchedQuery | None,
    zone: str,
) -> pa.Table:
    """The changes of an answer by a recapture; RecaptureNeededError if its rows are not stored."""
    # What filled the state may be another circuit than the plan's, made alike.
    rows = state.compiled.kept if isinstance(state, MaintainedQuery) else None
    if plan.answer is None or rows is None:
        raise not_told(query, plan.no_answer or plan.reason)
    return changes_between(before, RowsOf.kept(plan.answer.ending, rows), zone)


def stored_rows(ctx: Context, store: StoreReader, spec: QuerySpec, stored: StoredQuery) -> RowsOf:
    """The rows stored with a query's newest sketch, and its answer then. UsageError without stored
    rows; RecaptureNeededError if they belong to another form of the query."""
    check_materialized(spec, stored)
    check_definition(ctx, spec, stored)
    prepared = prepare(ctx, spec, stored_moments(stored))
    if not is_same_circuit(ctx, prepared, stored):
        raise not_told(spec.name, "its plan is different now")
    answer = ctx.memory.answer(prepared.planned)
    rows = compile_answer(answer, has_trees=bool(stored.state_meta.get("trees"))).kept
    assert rows is not None
    rows.load(store.load_runs(stored.query, rows.beginning))
    return RowsOf.kept(answer.ending, rows)


def check_materialized(spec: QuerySpec, stored: StoredQuery) -> None:
    """UsageError where the store has no materialized result of the query."""
    if not stored.state_meta.get("answer"):
        raise not_materialized(spec)


def not_told(query: QueryName, why: str) -> RecaptureNeededError:
    """The error for a commit that would skip changes of the answer."""
    return RecaptureNeededError(
        f"The changes of the result of query `{query}` are unknown: {why}",
        code="changes_unknown",
        hint=f"run `impctl capture --query {query}`, read the whole result (`impctl changes "
        "--all`), and continue from there",
    )


# Files of changes, one per query and step. Law: a file is whole and durable before its step is
# committed. Its name has the commit's number and the versions before and after, so a run that
# replaces a killed one writes the same file or removes it, with the files of steps after it. So
# each committed step has one file, and reading those up to the committed versions gives each change
# once.

_LONGEST = 200
"""Characters of a file name that all file systems accept."""

_SAID = b"impctl"
"""The key of a file's description, in its schema."""


class CommitInfo(Struct, frozen=True):
    """The query, commit number, versions before and after, and then the clock's values
    (`moments`)."""

    query: QueryName
    number: int
    since: Versions
    until: Versions
    moments: Mapping[str, str]

    @property
    def file_name(self) -> str:
        """Such as `000012_orders-5-7.parquet`."""
        parts = [f"{quote(t, safe='')}-{self.since[t]}-{self.until[t]}" for t in sorted(self.until)]
        parts += [f"{quote(n, safe='')}-{quote(v, safe='')}" for n, v in self.moments.items()]
        text = "_".join(parts)
        if len(text) > _LONGEST:
            text = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.number:06}_{text}.parquet"

    def as_json(self) -> str:
        since, versions = dict(self.since), dict(self.until)
        fields = {"query": self.query, "commit": self.number, "since": since, "versions": versions}
        return json.dumps(fields)


def lead_of(stored: StoredQuery, until: Versions, moments: Mapping[str, str]) -> CommitInfo:
    """The description of the commit that follows the stored one."""
    return CommitInfo(stored.query, stored.generation + 1, stored.versions, until, moments)


class ChangeFiles:
    """The files of a run: those `written`, by query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: dict[QueryName, list[str]] = {}

    def write(self, lead: CommitInfo, changes: pa.Table) -> None:
        """Write the changes of a step that is about to be committed."""
        import pyarrow.parquet as pq

        path = self.folder / lead.query / lead.file_name
        metadata = {**(changes.schema.metadata or {}), _SAID: lead.as_json().encode()}
        try:
            _make_lasting(path.parent)
            with whole_file(path) as file:
                pq.write_table(changes.replace_schema_metadata(metadata), file)
            for other in _leftovers(lead, path):
                other.unlink(missing_ok=True)
            sync_entries(path.parent)
        except OSError as error:
            hint = (
                "free disk space or grant write access, and run the command again; nothing was "
                "committed"
            )
            raise not_written("The changes", path, error, "changes_not_written", hint) from error
        self.written.setdefault(lead.query, []).append(str(path))


def check_change_files(
    ctx: Context, specs: Sequence[QuerySpec], path: Path, *, is_named: bool
) -> None:
    """UsageError, before any work, unless changes of answers can be written. Every named query
    needs a materialized result; of a whole file one query does."""
    without = [spec for spec in specs if not spec.answer]
    if without and (is_named or len(without) == len(specs)):
        raise not_materialized(without[0])
    if ctx.settings.dry_run:
        return
    folder = path.absolute()
    check_output(folder, ctx.reserved)
    try:
        _make_lasting(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"Changes cannot be written to `{path}`: {error.strerror or error}",
            hint="name a folder with write access; it may be new",
            code="changes_folder",
        ) from error


def not_materialized(spec: QuerySpec) -> UsageError:
    hint = "write `answer: true` under the query and run `impctl capture`"
    if spec.answer:
        hint = "`impctl explain` shows why its result is not materialized"
    return UsageError(
        f"The result of query `{spec.name}` is not materialized, so its inserted and "
        "deleted rows are unknown",
        hint=hint,
        code="answer_not_kept",
        location=spec.location,
    )


def _leftovers(lead: CommitInfo, path: Path) -> list[Path]:
    """Files of runs that died before their commit: of the same commit from the same versions, and
    of steps that would have followed. The last comes first: a run killed while removing them leaves
    the first ones to be detected."""
    numbers: dict[int, list[Path]] = {}
    for other in path.parent.glob("*.parquet"):
        written = other.name.partition("_")[0]
        if written.isdecimal() and int(written) >= lead.number:
            numbers.setdefault(int(written), []).append(other)
    paths: list[Path] = []
    number, since, reached = lead.number, [dict(lead.since)], [dict(lead.until)]
    while since:
        for other in numbers.get(number, ()):
            description = None if other == path else _described_change(other, lead.query)
            if description is not None and description["since"] in since:
                paths.append(other)
                reached.append(description["versions"])
        number, since, reached = number + 1, reached, []
    parts = path.parent.glob(f".{lead.number:06}_*.part")
    return [*reversed(paths), *parts]


def _described_change(path: Path, query: QueryName) -> dict[str, Any] | None:
    """A file's description; None unless it is impctl's, of this query."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, pa.ArrowException, ValueError, AttributeError):
        description = json.loads((pq.read_schema(path).metadata or {}).get(_SAID, b"null"))
        if description.get("query") == query and description.keys() >= {"since", "versions"}:
            return dict(description)
    return None


def _make_lasting(folder: Path) -> None:
    """Make the folder survive a power cut after the commit."""
    missing = [parent for parent in (*reversed(folder.parents), folder) if not parent.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for parent in missing:
        sync_entries(parent.parent)
