"""A request for a query resolved: parameters, table versions, and the sketch that serves it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from reprlib import repr as shortened
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from impctl.compile.build import template_id
from impctl.errors import (
    EvaluationError,
    HistoryGoneError,
    ImpctlError,
    Location,
    PolicyRefusedError,
    QueryError,
    RecaptureNeededError,
    RetryableError,
    TableError,
    TableRecreatedError,
    UnsafeSketchError,
    UnsupportedError,
    UsageError,
)
from impctl.plan.nodes import Fixpoint, Query, Scan
from impctl.plan.recursion import is_recursive
from impctl.reuse.verdict import ReuseVerdict, has_similar_recursion
from impctl.service.answer import Passthrough, unread
from impctl.service.filters import Pruned, filters_of, guards_of
from impctl.service.maintain import maintain_specs
from impctl.service.maintenance_plan import is_same_circuit, restored_query
from impctl.service.parameters import split_moving, with_parameters
from impctl.service.prepare import PreparedQuery, fact_of, facts_of, prepare
from impctl.service.results import (
    NO_SKETCH,
    NOT_USED,
    SKETCH_NONE_REASON,
    MaintainResult,
    Outcome,
    ReuseCandidate,
    ReuseEntry,
)
from impctl.service.settings import AtVersions, QueryRequest
from impctl.service.stored import (
    catch_up,
    check_definition,
    check_marked,
    is_defined_alike,
    is_of_this_release,
    is_up_to_date,
    may_be_marked,
    moved_meanwhile,
    sketch_entry,
    still,
    stored_moments,
    stored_query,
)
from impctl.service.text import named_before
from impctl.sketch.sketch import MAX_INTERVALS, range_filter, ranges_between
from impctl.spark.predicates import plain_filter, rewrite_sql
from impctl.store.disk import STORE_READ_ONLY, StoreLayout
from impctl.store.ledger import Ledger, Use
from impctl.tables.files import hiding_columns
from impctl.tables.rows import ReadPart
from impctl.tables.snapshot import bytes_of
from impctl.tables.source import oldest_version
from impctl.types import TableName, TableVersion
from impctl.version import is_stamped_alike
from impctl.workload.models import (
    LineageMode,
    MaintainMode,
    Policy,
    QuerySpec,
    SketchPolicy,
    SqlOrigin,
    SqlRun,
    TextPiece,
)
from impctl.workload.yaml import suggestion

if TYPE_CHECKING:
    from impctl.service.context import Context, Versions
    from impctl.service.pinned import PinnedTables
    from impctl.sql.names import TableNames
    from impctl.store.reader import StoreReader
    from impctl.store.records import Assumption, StoredQuery, StoredSketch


# `--at VERSION`, `--at TABLE=VERSION`, or a Python value. Law: every table of the query gets a
# version, or the run ends with exit code 2. None is guessed, because the newest version of one
# table and an old one of another may never have coexisted.

_VERSION = re.compile(r"[0-9]{1,18}")


@contextmanager
def reporting_lost_versions(option: str = "--at") -> Iterator[None]:
    """Report a lost log or file of an older version as `version_gone` or `data_files_gone`: the
    usual advice to capture now would not bring it back."""
    try:
        yield
    except HistoryGoneError as error:
        code = "version_gone" if option == "--since" else "data_files_gone"
        hint = f"`{option}` takes versions whose log and files still exist"
        raise HistoryGoneError(error.message, code=code, hint=hint) from error


def versions_at(
    spec: QuerySpec,
    tables: Sequence[TableName],
    at: AtVersions,
    names: TableNames,
    option: str = "--at",
) -> dict[TableName, TableVersion]:
    """The version of each of the query's tables, by any of their names."""
    result: dict[TableName, TableVersion] = {}
    # Table and version of each text or value; no table where none is named.
    pairs: list[tuple[TableName | None, object]] = [(None, at)]
    if isinstance(at, Mapping):
        pairs = list(at.items())
    elif isinstance(at, Sequence) and not isinstance(at, str):
        parts = [text.rpartition("=") for text in at]
        pairs = [(table if equals else None, version) for table, equals, version in parts]
    for table, version in pairs:
        if table is None and len(tables) > 1:
            raise _usage(
                f"Query `{spec.name}` reads {len(tables)} tables, but `{option} {version}` "
                "names none",
                _form(tables, option),
            )
        name = tables[0] if table is None else names.called(table) or table
        if name not in tables:
            raise UsageError(
                f"Query `{spec.name}` does not read a table `{name}`",
                hint=suggestion(name, list(tables), "it reads"),
                code="at_table_unknown",
                location=spec.location,
            )
        if name in result:
            raise _usage(f"The version of table `{name}` occurs twice", "give it once")
        result[name] = _version(name, version)
    missing = [table for table in tables if table not in result]
    if missing:
        listed = " and ".join(f"`{table}`" for table in missing)
        raise _usage(f"`{option}` lacks the version of table {listed}", _form(tables, option))
    return result


def _version(table: TableName, value: object) -> TableVersion:
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    text = str(int(value)) if is_number else value  # type: ignore[call-overload]  # an Integral
    if isinstance(text, str) and _VERSION.fullmatch(text):
        return int(text)
    shown = value if isinstance(value, str) else shortened(value)
    raise _usage(
        f"The version of table `{table}` must be a whole number from 0, not: {shown}",
        "`impctl status` shows the version of the newest sketch",
    )


def _form(tables: Sequence[TableName], option: str) -> str:
    example = " ".join(f"{option} {table}=VERSION" for table in tables)
    return f"give it for every table: `{example}`"


def _usage(message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, code="at_syntax")


# Whether a sketch is worth its filter: rows skipped against the cost of checking every row. Law:
# this changes what is read, never the answer. Without a sketch everything is read as if it did not
# exist, also of tables joined with its own. The rates are measured on Spark (decision 0041).

_FILTERED, _FILTERED_BY_SHARE = 0.75, 0.65
"""Cost of reading a byte through a filter, by the share of rows that pass: 0.75 of an unfiltered
read if hardly any do, 1.4 if all do."""
_ONE_MORE_PART, _MOST_PARTS = 0.25, 4
"""Extra cost of each further part read through its own filter, up to so many parts."""
_ONE_MORE_COLUMN = 4.0
"""Extra cost of decoding and testing a column that the query does not read."""


class ReadChoice(Struct, frozen=True):
    """What to read, what it would be by conditions alone, and per unused sketch the reason."""

    pruned: Pruned
    plain: Pruned
    unused: Mapping[TableName, str]

    def used(self, sketches: Iterable[StoredSketch]) -> tuple[StoredSketch, ...]:
        """The sketches to read through."""
        return tuple(sketch for sketch in sketches if sketch.table not in self.unused)


def chosen_read(tables: PinnedTables, result: ResolvedSketch, use: SketchPolicy) -> ReadChoice:
    """What the query reads through these sketches; with `auto`, where they pay."""
    if use is SketchPolicy.AUTO:
        return read_choice(tables, result.prepared, result.sketches, result.versions)
    pruned = filters_of(tables, result.prepared, result.sketches, result.versions)
    plain = filters_of(tables, result.prepared, (), result.versions)
    return ReadChoice(pruned, plain, {})


def read_choice(
    tables: PinnedTables,
    prepared: PreparedQuery,
    sketches: Sequence[StoredSketch],
    versions: Versions,
) -> ReadChoice:
    """What the query reads through these sketches where they pay."""
    plain = filters_of(tables, prepared, (), versions)
    if not sketches:
        return ReadChoice(plain, plain, {})
    unused: dict[TableName, str] = {}
    pruned = filters_of(tables, prepared, sketches, versions)
    while away := _not_worth_it(prepared, pruned, plain):
        unused |= away
        # Again: the rest of a table narrows the tables that it is joined with.
        used = [sketch for sketch in sketches if sketch.table not in unused]
        pruned = filters_of(tables, prepared, used, versions) if used else plain
    return ReadChoice(pruned, plain, unused)


def _not_worth_it(prepared: PreparedQuery, pruned: Pruned, plain: Pruned) -> dict[TableName, str]:
    result: dict[TableName, str] = {}
    for table in prepared.tables:
        scans = [scan for scan in prepared.scans if scan.table == table]
        if any(scan.access in pruned.filters for scan in scans):
            total = bytes_of(plain.files[table])
            if _cost(scans, pruned, table) >= total:
                files_kept, count = len(pruned.files[table]), len(plain.files[table])
                if count == 1:
                    reason = "it cannot skip the table's only file"
                elif files_kept == count:
                    reason = f"it skips none of the {count:,} files"
                else:
                    costs = "checking rows against its ranges costs more"
                    reason = f"it skips only {count - files_kept:,} of {count:,} files, and {costs}"
                result[table] = reason
    return result


def _cost(scans: list[Scan], pruned: Pruned, table: TableName) -> float:
    """Bytes read with the sketch, filtered ones at their rate."""
    filters = [pruned.filters[scan.access] for scan in scans if scan.access in pruned.filters]
    parts = pruned.parts.get(table)
    if parts is None:
        parts = (ReadPart(pruned.files[table], filters[0]),)
    inside = bytes_of(file for part in parts if part.filter is None for file in part.files)
    filtered = bytes_of(file for part in parts if part.filter is not None for file in part.files)
    if not filtered:
        return inside
    # The share of rows that pass, taking ranges as even.
    share = max(
        sum(
            len(ranges_between(interval, range_filter.partition))
            for interval in range_filter.intervals
        )
        / range_filter.partition.ranges
        for range_filter in filters
    )
    columns = {attribute.name for scan in scans for attribute in scan.attributes}
    filtered_parts = sum(part.filter is not None for part in parts)
    rate = _FILTERED + _FILTERED_BY_SHARE * share
    rate += _ONE_MORE_PART * (min(filtered_parts, _MOST_PARTS) - 1)
    if not all(range_filter.partition.attribute in columns for range_filter in filters):
        rate += _ONE_MORE_COLUMN / max(len(columns), 1)
    return inside + filtered * rate


# Queries whose sketch is unavailable. Law: only problems of the sketch lead here; problems of the
# query or a table stay errors. The reason and a hint are reported. Policy `strict` and callers that
# require the sketch get the error.

_SKETCH_ERRORS = (
    EvaluationError,
    QueryError,
    RecaptureNeededError,
    RetryableError,
    TableError,
    UnsafeSketchError,
)
"""Errors that may leave a query without its sketch, as a read-only store does. Some affect the
query as well: then reading without one fails too, or is not tried (`unread`)."""


def without_sketch(
    ctx: Context, spec: QuerySpec, error: ImpctlError
) -> ResolvedSketch | Passthrough:
    """The query without the sketch that `error` made unavailable; raises it where it must."""
    if ctx.policy(spec) is Policy.STRICT:
        raise error
    result = plain(ctx, spec, error)
    why = _reason_without(ctx, result, error)
    location = "" if why.location is None else f" ({why.location})"
    hint = "" if why.hint is None else f"; {why.hint}"
    message = named_before(spec.name, why.message)
    warning = f"query `{spec.name}` is answered without a sketch: {message}{location}{hint}"
    result = replace(result, action=NO_SKETCH, reason=why.message, warnings=(warning,))
    if isinstance(result, ResolvedSketch) and spec.answer:
        return replace(result, refusal=why)
    return result


def plain(
    ctx: Context, spec: QuerySpec, error: ImpctlError | None = None
) -> ResolvedSketch | Passthrough:
    """The query as it is, at the newest versions; `error`, if any, where it cannot be read."""
    try:
        prepared = prepare(ctx, spec)
        versions = ctx.tables.versions_of(prepared.tables)
    except QueryError as refused:
        return unread(ctx, spec, refused)
    except ImpctlError:
        # The first error says more than its consequence, unless a capture would fail so too.
        if error is None or error.code == "not_captured":
            raise
        raise error from None
    return ResolvedSketch(prepared=prepared, sketches=(), versions=versions, action=NOT_USED)


def _reason_without(
    ctx: Context, result: ResolvedSketch | Passthrough, error: ImpctlError
) -> ImpctlError:
    """The error, or if the query was never captured, why it cannot be."""
    from impctl.service.capture import refusal_of

    if error.code != "not_captured":
        return error
    refusal = (
        result.refusal if isinstance(result, Passthrough) else refusal_of(ctx, result.prepared)
    )
    return error if refusal is None else refusal


# Uses in the ledger. Law: counted from the files' statistics, never by reading; a use continues
# even if it cannot be recorded.


def record_use(
    ctx: Context,
    result: ResolvedSketch,
    read: Pruned,
    plain: Pruned,
    *,
    command: str,
    elapsed_ms: float = 0.0,
) -> None:
    """Record one use of these sketches, for the query that owns them, if a store is writable."""
    if not result.sketches or not StoreLayout(ctx.store_path).catalog.is_file():
        return
    lender = None if result.reuse is None else result.reuse.query
    (files, rows, size), (all_files, all_rows, total) = (sums_of(read), sums_of(plain))
    use = Use(
        query=lender or result.prepared.spec.name,
        at=time.time(),
        command=command,
        versions=json.dumps(dict(result.versions), sort_keys=True),
        is_used=bool(read.filters),
        files=files,
        files_plain=all_files,
        rows=rows,
        rows_plain=all_rows,
        bytes=size,
        bytes_plain=total,
        elapsed_ms=elapsed_ms,
    )
    if not Ledger(ctx.store_path).record(use):
        ctx.reporter.step("this use was not recorded, because the ledger could not be written")


def sums_of(pruned: Pruned) -> tuple[int, int, int]:
    """Files, rows as far as the log counts them, bytes."""
    files = [file for group in pruned.files.values() for file in group]
    return len(files), sum(file.rows or 0 for file in files), sum(file.size for file in files)


# Reuse of another query's sketch. Law: only if `reuse.verdict` permits it at the very versions of
# the sketch; each rejected one has its reason. If none serves, the query reads whole tables:
# slower, never wrong. Policy `strict` refuses that, with the obstacle if a sketch could not be
# maintained now.

_OWN_TEXT_ALONE = {
    LineageMode.WITNESS: "its sketch holds only witnesses (`lineage: witness`), "
    "so it serves only its own text",
    LineageMode.ANSWER: (
        "its sketch holds only the lineage of that query's result (`lineage: answer`)"
    ),
}
_NO_TEMPLATE = "no captured query has the same template"


_Candidate = tuple[tuple[float, float], ReuseCandidate]
"""A stored query of the same template, or the one that was named, with its rank."""


def reused(ctx: Context, spec: QuerySpec, owner: QuerySpec | None) -> ResolvedSketch:
    """The query with the smallest sketch that serves it; it is an instance of `owner`, if any."""
    prepared = prepare(ctx, spec)
    judged = _candidates(ctx, prepared, owner)
    entries = [entry for _, entry in judged]
    passing: RetryableError | None = None
    for index in sorted(range(len(judged)), key=lambda index: judged[index][0]):
        entry = entries[index]
        if not entry.allowed:
            continue
        try:
            used = _usable(ctx, prepared, entry.query)
        except RetryableError as error:
            # Another writer, or the disk of the store: the tables can be read all the same.
            passing, used = error, _not_maintained(error)
        if isinstance(used, str):
            entries[index] = replace(entry, allowed=False, reason=used)
            continue
        result, reason = used
        sketches = tuple(map(sketch_entry, result.sketches))
        entries[index] = replace(entry, chosen=True, reason=reason, sketches=sketches)
        candidates = tuple(
            replace(other, reason="also usable, but a smaller one was chosen")
            if other.allowed and not other.chosen
            else other
            for other in entries
        )
        return replace(result, reuse=ReuseEntry(entry.query, reason, candidates))
    return _without(ctx, prepared, tuple(entries), passing)


def _without(
    ctx: Context,
    prepared: PreparedQuery,
    candidates: tuple[ReuseCandidate, ...],
    passing: RetryableError | None,
) -> ResolvedSketch:
    """The query on its whole tables; `passing` is a failure that a retry may not meet."""
    spec = prepared.spec
    reason = "no stored sketch can be used" if candidates else _NO_TEMPLATE
    if ctx.policy(spec) is Policy.STRICT:
        if passing is not None:
            raise passing
        why = "; ".join(f"`{entry.query}`: {entry.reason}" for entry in candidates)
        raise PolicyRefusedError(
            f"Policy `strict` does not run query `{spec.name}` without a sketch: {why or reason}",
            hint="capture it under its own name, or set the policy to `auto`",
            code="no_sketch_to_reuse",
            location=spec.location,
        )
    versions = ctx.tables.versions_of(prepared.tables)
    warning = f"query `{spec.name}` runs without a sketch, because {reason}"
    return ResolvedSketch(
        prepared=prepared,
        sketches=(),
        versions=versions,
        warnings=(warning,),
        reuse=ReuseEntry(None, reason, candidates),
    )


def _candidates(ctx: Context, prepared: PreparedQuery, owner: QuerySpec | None) -> list[_Candidate]:
    """Judge the named query and every stored one with the same template or a similar recursion."""
    store = ctx.reading_store()
    template = template_id(prepared.core)
    candidates = []
    for spec in ctx.workload.queries.values():
        is_named = owner is not None and spec.name == owner.name
        stored = store.load(spec.name) if store is not None and spec.is_sketched else None
        if stored is None:
            if is_named:
                candidates.append(_refused(spec, "it has not been captured"))
            continue
        try:
            result = _judge(ctx, prepared, spec, stored, template, is_named=is_named)
        except ImpctlError as error:
            result = _refused(spec, error.message)
        if result is not None:
            candidates.append(result)
    return candidates


def _judge(
    ctx: Context,
    prepared: PreparedQuery,
    spec: QuerySpec,
    stored: StoredQuery,
    template: str,
    *,
    is_named: bool,
) -> _Candidate | None:
    known = stored.state_meta.get("template", "")
    is_known = is_stamped_alike(known, template)
    is_other = is_known and known != template and not is_named
    if is_other and not is_recursive(prepared.core):
        return None
    if not is_defined_alike(ctx, spec, stored):
        is_reported = is_known and not is_other
        return _refused(spec, "it changed since the capture") if is_reported else None
    try:
        # As of now: before its sketch is used, that follows the clock, and is judged again.
        captured = prepare(ctx, spec)
    except ImpctlError:
        if is_other:
            return None
        raise
    is_alike = is_named or template_id(captured.core) == template
    if not is_alike and not has_similar_recursion(prepared.core, captured.core):
        return None
    if spec.lineage in _OWN_TEXT_ALONE:
        return _refused(spec, _OWN_TEXT_ALONE[spec.lineage])
    verdict = verdict_of(ctx, prepared, captured, stored.sketches, stored.assumptions)
    if not verdict.allowed:
        return _refused(spec, verdict.reason)
    sketches = mapped(stored.sketches, verdict)
    versions = ctx.tables.versions_of(prepared.tables)
    files_left = filters_of(ctx.tables, prepared, sketches, versions, for_text=True).files
    counts = [file.rows for files in files_left.values() for file in files]
    known_counts = [count for count in counts if count is not None]
    rows = sum(known_counts) if len(known_counts) == len(counts) else None
    accesses = max(len(prepared.scans), 1)
    share = sum(len(s.ranges) / s.partition.size for s in sketches) / accesses
    bare = 1 - len(sketches) / accesses
    entries = tuple(map(sketch_entry, stored.sketches))
    candidate = ReuseCandidate(spec.name, True, False, verdict.reason, entries, rows)
    return (float("inf") if rows is None else rows, share + bare), candidate


def _refused(spec: QuerySpec, reason: str) -> _Candidate:
    return (0.0, 0.0), ReuseCandidate(spec.name, False, False, reason)


def verdict_of(
    ctx: Context,
    prepared: PreparedQuery,
    captured: PreparedQuery,
    sketches: Sequence[StoredSketch],
    assumptions: Sequence[Assumption],
) -> ReuseVerdict:
    """The verdict under facts of the pinned versions, the sketch's assumptions included."""
    facts = [*facts_of(ctx.tables, prepared.scans), *map(fact_of, assumptions)]
    sketched = tuple((sketch.access, sketch.attribute) for sketch in sketches)
    return ctx.memory.reuse(prepared.planned, captured.planned, sketched, facts)


def mapped(sketches: Sequence[StoredSketch], verdict: ReuseVerdict) -> tuple[StoredSketch, ...]:
    """The sketches by accesses of the requested query."""
    known = {sketch.access: sketch for sketch in sketches}
    return tuple(
        replace(known[other], access=access)
        for access, other in verdict.accesses.items()
        if other in known
    )


def _usable(ctx: Context, prepared: PreparedQuery, name: str) -> tuple[ResolvedSketch, str] | str:
    """The other query's maintained and rechecked sketch, or a text why it cannot be used.
    RetryableError if only something temporary is in the way."""
    try:
        current = current_query(ctx, name)
    except (PolicyRefusedError, RecaptureNeededError, UnsupportedError) as error:
        return _not_maintained(error)
    verdict = verdict_of(ctx, prepared, current.prepared, current.sketches, current.assumptions)
    if not verdict.allowed:
        return verdict.reason
    # Queries that share no more than a recursion may read other tables beside. An answer that is
    # kept is that of the other query's own constants.
    versions = {**ctx.tables.versions_of(prepared.tables), **current.versions}
    result = replace(
        current,
        prepared=prepared,
        sketches=mapped(current.sketches, verdict),
        versions={table: versions[table] for table in prepared.tables},
        assumptions=(),
        generation=None,
    )
    return result, verdict.reason


def _not_maintained(error: ImpctlError) -> str:
    return f"it could not be maintained: {error.message}"


# Sketches of older versions. Law: nothing is captured, maintained or written. Tables are pinned at
# the requested versions, so that schema, CHECKs, files and rows are those of the time. A sketch is
# used only if this release stored it for the present query, the SQL over the old schema gives the
# stored plan, the plan is safe under the stored assumptions, and every stored mark of log and files
# matches its table (decision 0035).

KEPT = "kept"
"""Reported action: the stored sketch of those versions is used."""

_LISTED = 8
"""Versions, or runs of them, that an error names."""


def older(ctx: Context, spec: QuerySpec, at: AtVersions) -> ResolvedSketch:
    """The query with the sketch stored for these versions; RecaptureNeededError without one."""
    store = ctx.reading_store()
    newest = stored_query(ctx, store, spec)
    assert store is not None
    check_definition(ctx, spec, newest)
    versions = versions_at(spec, tuple(newest.versions), at, ctx.workload.names)
    result = [
        store.load_kept(spec.name, kept.generation) for kept in store.kept(spec.name, versions)
    ]
    candidates = [stored for stored in result if stored is not None]
    if not candidates:
        raise RecaptureNeededError(
            f"Query `{spec.name}` has no stored sketch for {_older_explanation(versions)}",
            code="no_sketch_at",
            hint=_offer(ctx.tables, store, spec),
        )
    for table, version in versions.items():
        _pin(ctx.tables, store, spec, table, version)
    return _older_use(ctx, store, spec, candidates)


def _older_use(
    ctx: Context, store: StoreReader, spec: QuerySpec, candidates: Sequence[StoredQuery]
) -> ResolvedSketch:
    """The first usable sketch: the same versions may have been reached more than once."""
    refused: RecaptureNeededError | None = None
    for stored in candidates:
        try:
            check_definition(ctx, spec, stored)
            check_marked(stored, ctx.tables)
            prepared = prepare(ctx, spec, stored_moments(stored))
            if not is_same_circuit(ctx, prepared, stored):
                raise RecaptureNeededError(
                    f"Query `{spec.name}` has a different plan over the schema of "
                    f"{_older_explanation(stored.versions)} than the stored sketch",
                    code="engine_changed",
                    hint="run without `--at`",
                )
            restored_query(ctx.tables, prepared, stored)
        except RecaptureNeededError as error:
            refused = error if refused is None else refused
            continue
        return ResolvedSketch(
            prepared=prepared,
            sketches=stored.sketches,
            versions=stored.versions,
            assumptions=stored.assumptions,
            action=KEPT,
            reason="stored for these versions",
        )
    assert refused is not None
    if isinstance(refused, TableRecreatedError | HistoryGoneError):
        refused = refused.hinting(f"{refused.hint}; {_offer(ctx.tables, store, spec)}")
    raise refused


def _pin(
    tables: PinnedTables,
    store: StoreReader,
    spec: QuerySpec,
    table: TableName,
    version: TableVersion,
) -> None:
    newest = tables.source(table)
    try:
        tables.pin_at(table, version)
    except HistoryGoneError as error:
        raise HistoryGoneError(
            error.message, code="version_gone", hint=_offer(tables, store, spec)
        ) from error
    except RecaptureNeededError as error:
        raise type(error)(
            f"The sketch of {_older_explanation({table: version})} belongs to another history: "
            f"table `{table}` at {newest.path} is at version {newest.version}",
            hint=_offer(tables, store, spec),
        ) from error


def _offer(tables: PinnedTables, store: StoreReader, spec: QuerySpec) -> str:
    """The versions known to have a sketch, without building each of them."""
    offered: dict[tuple[tuple[TableName, TableVersion], ...], None] = {}
    existing: dict[TableName, range] = {}
    for kept in store.kept(spec.name):
        for table in kept.versions.keys() - existing.keys():
            source = tables.repin(table)
            existing[table] = range(oldest_version(source) or 0, source.version + 1)
        is_left = all(version in existing[table] for table, version in kept.versions.items())
        if is_left and is_of_this_release(kept.basis) and may_be_marked(kept, tables):
            offered[tuple(sorted(kept.versions.items()))] = None
    is_eager = spec.maintain is MaintainMode.EAGER
    more = "" if is_eager else "; with `maintain: eager` there would be one for every version"
    if not offered:
        return f"no usable sketch is left{more}"
    if all(len(pairs) == 1 for pairs in offered):
        listed = _runs([pairs[0][1] for pairs in offered])
    else:
        texts = [", ".join(f"{table}={version}" for table, version in pairs) for pairs in offered]
        older = f"; and {len(texts) - _LISTED} older" if len(texts) > _LISTED else ""
        listed = "; ".join(texts[:_LISTED]) + older
    return f"there are sketches for {listed}{more}"


def _runs(versions: Sequence[TableVersion]) -> str:
    """`versions 0 to 4 and 7`, the newest ones where they are many."""
    runs: list[list[TableVersion]] = []
    for version in sorted(set(versions)):
        if runs and runs[-1][1] == version - 1:
            runs[-1][1] = version
        else:
            runs.append([version, version])
    texts = []
    for low, high in runs[-_LISTED:]:
        is_short = high - low < 2
        texts += (
            [str(number) for number in range(low, high + 1)] if is_short else [f"{low} to {high}"]
        )
    older = f", and {len(runs) - _LISTED} older ranges of versions" if len(runs) > _LISTED else ""
    word = "version" if len(runs) == 1 and runs[0][0] == runs[0][1] else "versions"
    return f"{word} {_joined(texts)}{older}"


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _older_explanation(versions: Versions) -> str:
    return _joined([f"version {version} of table `{table}`" for table, version in versions.items()])


# A query's sketch, maintained first. Law: used only at its valid versions, and only while
# its query is safe and has the plan of the capture; the query's policy governs the maintenance.

_ATTEMPTS = 10
"""Retries when other processes maintain a sketch while it is restored."""


class ResolvedSketch(Struct, frozen=True, kw_only=True):
    """A query with its current sketches, and what maintaining them took. `sketches` are by its own
    accesses, none where no sketch serves; `action` and `reason` say how they were maintained.
    `reuse` is set if they may be another query's. `generation` is the commit of the query's own
    materialized result, if any; `refusal` says why a query with a materialized result has no
    sketch."""

    prepared: PreparedQuery
    sketches: tuple[StoredSketch, ...]
    versions: Versions
    assumptions: tuple[Assumption, ...] = ()
    action: str = "none"
    reason: str = ""
    warnings: tuple[str, ...] = ()
    reuse: ReuseEntry | None = None
    generation: int | None = None
    refusal: ImpctlError | None = None

    @property
    def query(self) -> Query:
        return self.prepared.query


def current_query(ctx: Context, query: str | None) -> ResolvedSketch:
    """The named query (or the file's only one) with its sketch at the pinned versions."""
    spec = ctx.query(query)
    outcome, stored = _maintained(ctx, spec)
    prepared = prepare(ctx, spec)
    restored_query(ctx.tables, prepared, stored)
    first = outcome.results[0]
    assert isinstance(first, MaintainResult)
    return ResolvedSketch(
        prepared=prepared,
        sketches=stored.sketches,
        versions=stored.versions,
        assumptions=stored.assumptions,
        action=first.action,
        reason=first.reason,
        warnings=outcome.warnings,
        generation=stored.generation if stored.state_meta.get("answer") else None,
    )


def _maintained(ctx: Context, spec: QuerySpec) -> tuple[Outcome, StoredQuery]:
    """The maintenance done, and the sketch at the pinned versions. If another process maintained it
    past them meanwhile, they are pinned again."""
    # Without a sketch there is nothing to lock, nor a store to make.
    stored_query(ctx, ctx.reading_store(), spec)
    for _ in range(_ATTEMPTS):
        outcome = maintain_specs(ctx, [spec], is_named=False, for_use=True)
        if outcome.failures:
            raise outcome.failures[0].error
        stored = stored_query(ctx, ctx.reading_store(), spec)
        check_definition(ctx, spec, stored)
        catch_up(ctx.tables, stored)
        is_of_now = is_up_to_date(ctx, spec, stored)
        if is_of_now and is_same_circuit(ctx, prepare(ctx, spec, still(stored)), stored):
            return outcome, stored
    raise moved_meanwhile(spec.name)


# Law: a query with its own constants uses its own sketch, or the one stored for older versions;
# only another text or other values search the workload's sketches. Without a sketch the query is
# answered all the same, unless one is required.

SQL_NAME = "--sql"
"""The name of a query from the command line; no query of a file can have it."""


def resolved(ctx: Context, request: QueryRequest) -> ResolvedSketch | Passthrough:
    """The query with the sketches to use; UsageError where the options exclude each other. `at`
    selects stored sketches of those versions, for a query with its own constants. Unused sketches
    are not maintained. Without a sketch the query is returned with a warning, or the error is
    raised if one is `required`."""
    use, required = request.sketch, request.required
    if required and use is SketchPolicy.NEVER:
        raise UsageError(
            "`--require-sketch` excludes `--sketch never`",
            hint="give one of them",
            code="sketch_and_never",
        )
    if request.at is not None:
        if request.params or request.sql is not None:
            raise UsageError(
                "`--at` excludes `--param` and `--sql`",
                hint="the sketch stored for a version belongs to a query with its own constants",
                code="at_and_constants",
            )
        stored = older(ctx, ctx.query(request.query), request.at)
        is_unused = use is SketchPolicy.NEVER
        return replace(stored, sketches=(), action=NOT_USED) if is_unused else stored
    spec, owner = _requested(ctx, request)
    if use is SketchPolicy.NEVER:
        return plain(ctx, spec)
    if not spec.is_sketched and not required:
        return replace(plain(ctx, spec), action=NO_SKETCH, reason=SKETCH_NONE_REASON)
    try:
        if not spec.is_sketched:
            raise UnsafeSketchError(
                f"Query `{spec.name}` has `sketch: none` in the workload file",
                hint="remove `sketch: none` and capture it, or run it without `--require-sketch`",
                code="sketch_required",
                location=spec.location,
            )
        result = current_query(ctx, spec.name) if spec == owner else reused(ctx, spec, owner)
        if required and not result.sketches:
            raise _none_serves(spec, result)
        return result
    except ImpctlError as error:
        if required and error.code == "not_captured":
            raise _reason_without(ctx, plain(ctx, spec, error), error) from None
        if required:
            raise
        if not isinstance(error, _SKETCH_ERRORS) and error.code != STORE_READ_ONLY:
            raise
        return without_sketch(ctx, spec, error)


def _requested(ctx: Context, request: QueryRequest) -> tuple[QuerySpec, QuerySpec | None]:
    if request.sql is None:
        owner = ctx.query(request.query)
        moving, others = split_moving(owner, request.params)
        ctx.give(moving)
        return with_parameters(owner, others), owner
    if request.query is not None or request.params:
        raise UsageError(
            "`--sql` excludes `--query` and `--param`",
            hint="write the constants into the SQL text",
            code="sql_and_query",
        )
    return _spec_of(request.sql), None


def _none_serves(spec: QuerySpec, result: ResolvedSketch) -> UnsafeSketchError:
    """The error where no query's sketch serves these constants."""
    looked = () if result.reuse is None else result.reuse.candidates
    why = "; ".join(f"`{entry.query}`: {entry.reason}" for entry in looked)
    reason = "no sketch is stored for it" if result.reuse is None else result.reuse.reason
    return UnsafeSketchError(
        f"Query `{spec.name}` has no usable sketch: {why or reason}",
        hint="capture it under its own name, or run it without `--require-sketch`",
        code="sketch_required",
        location=spec.location,
    )


def _spec_of(sql: str) -> QuerySpec:
    """The text as a query; positions in it are positions of `--sql`."""
    runs: list[SqlRun] = []
    offset = 0
    for number, line in enumerate(sql.split("\n"), start=1):
        runs.append(SqlRun(offset, number, 1))
        offset += len(line) + 1
    start = Location(SQL_NAME, 1, 1)
    origin = SqlOrigin(start, tuple(runs), (TextPiece(0, 0, True),))
    return QuerySpec(name=SQL_NAME, sql=sql, location=start, sql_origin=origin)


# Text for other readers. Law: over its versions the text gives the query's answer, also on a Spark
# that pushes conditions down to files. It has one filter of few intervals per table; `pruned` lists
# the files kept. What Spark does not run is written for DuckDB, PostgreSQL and SQLite, without
# sketches whose ranges they might read differently.

_MOST_INTERVALS = 256
"""For a filter that Spark does not compile: DuckDB's time grows slowly with the intervals."""


def written_query(
    tables: PinnedTables,
    prepared: PreparedQuery,
    query: Query,
    sketches: Sequence[StoredSketch],
    versions: Versions,
    *,
    has_files: bool = False,
) -> tuple[str, Pruned]:
    """`query` with the sketches as range predicates, at these versions, and what it leaves to
    read. `has_files`: the reader gets a file list, so it is not Spark and may get more
    intervals."""
    limit = _MOST_INTERVALS if has_files else MAX_INTERVALS
    if is_for_others(query):
        # Other engines may not read a boundary, and those that prune by statistics may lose NaN.
        sketches = [
            sketch
            for sketch in sketches
            if plain_filter(range_filter(sketch.ranges, sketch.partition), sketch.attribute)
            is not None
            and not hiding_columns(
                tables.snapshot(sketch.table, versions.get(sketch.table)), [sketch.attribute]
            )
        ]
        pruned = filters_of(tables, prepared, sketches, versions, for_text=True, limit=limit)
        return rewrite_sql(query, pruned.filters, is_plain=True), pruned
    pruned = filters_of(tables, prepared, sketches, versions, for_text=True, limit=limit)
    # Others' Spark hands conditions down to the files too.
    guards = guards_of(tables, pruned)
    return rewrite_sql(query, pruned.filters, guards=guards), pruned


def is_for_others(query: Query) -> bool:
    """Whether Spark cannot run the text: it has WITH RECURSIVE of UNION, used or not."""
    every = (*query.root.walk(), *query.unused)
    return any(isinstance(node, Fixpoint) and node.is_set for node in every)
