"""The sketch that was stored for given table versions, used at exactly these.

Law: nothing is captured, maintained or written. The tables are pinned at the versions asked for,
so that schema, CHECKs, files and rows are those of then. A sketch is only used if this release
stored it for the query as it is now, reads the SQL over the schema of then as the plan it was
stored for, finds it safe with the assumptions stored beside it, and every mark of log and files
that was taken with it is that of the table at its version (decision 0039).
Out of scope: which versions are meant (`app.using.older_versions`), the newest sketch
(`app.using.fresh_sketch`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from impctl.app.capturing.chosen_way import is_same_circuit, restored_verdict
from impctl.app.capturing.definition import check_definition, is_stamp_of_this_release, stored_query
from impctl.app.capturing.moments import stored_moments
from impctl.app.capturing.pins import check_marked, may_be_marked
from impctl.app.preparing.prepared import prepare
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.older_versions import AtVersions, versions_at
from impctl.app.workbench.pinned import PinnedTables
from impctl.app.workbench.workbench import Workbench
from impctl.errors import HistoryGoneError, RecaptureNeededError, TableRecreatedError
from impctl.store.reader import StoreReader
from impctl.store.records import StoredQuery
from impctl.tables.source import oldest_version
from impctl.types import TableName, TableVersion
from impctl.workload.models import MaintainMode, QuerySpec

Versions = Mapping[TableName, TableVersion]

KEPT = "kept"
"""The action told: the sketch is the one kept from then."""

_LISTED = 8
"""Versions, or runs of them, that an error names."""


def older(desk: Workbench, spec: QuerySpec, at: AtVersions) -> Fresh:
    """The query with the sketch stored for these versions; RecaptureNeededError without one."""
    store = desk.reading_store()
    newest = stored_query(desk, store, spec)
    assert store is not None
    check_definition(desk, spec, newest)
    wanted = versions_at(spec, tuple(newest.versions), at, desk.workload.names)
    result = [store.load_kept(spec.name, kept.generation) for kept in store.kept(spec.name, wanted)]
    candidates = [stored for stored in result if stored is not None]
    if not candidates:
        raise _none_there(desk.tables, store, spec, wanted)
    for table, version in wanted.items():
        _pin(desk.tables, store, spec, table, version)
    return _used(desk, store, spec, candidates)


def _used(
    desk: Workbench, store: StoreReader, spec: QuerySpec, candidates: Sequence[StoredQuery]
) -> Fresh:
    """The first that may be used: the same versions may have been reached more than once."""
    refused: RecaptureNeededError | None = None
    for stored in candidates:
        try:
            check_definition(desk, spec, stored)
            check_marked(stored, desk.tables)
            prepared = prepare(desk, spec, stored_moments(stored))
            if not is_same_circuit(desk, prepared, stored):
                raise RecaptureNeededError(
                    f"Query `{spec.name}` has a different plan over the schema of "
                    f"{_said(stored.versions)} than the stored sketch",
                    code="engine_changed",
                    hint="run without `--at`",
                )
            restored_verdict(desk.tables, prepared, stored)
        except RecaptureNeededError as error:
            refused = error if refused is None else refused
            continue
        return Fresh(
            prepared=prepared,
            sketches=stored.sketches,
            versions=stored.versions,
            assumptions=stored.assumptions,
            action=KEPT,
            reason="stored for these versions",
        )
    assert refused is not None
    if isinstance(refused, TableRecreatedError | HistoryGoneError):
        refused = refused.hinting(f"{refused.hint}; {_offer(desk.tables, store, spec)}")
    raise refused


def _pin(
    tables: PinnedTables,
    store: StoreReader,
    spec: QuerySpec,
    table: TableName,
    version: TableVersion,
) -> None:
    """The table at the version; an error that names those that are left where it is gone."""
    newest = tables.source(table)
    try:
        tables.pin_at(table, version)
    except HistoryGoneError as error:
        raise HistoryGoneError(
            error.message, code="version_gone", hint=_offer(tables, store, spec)
        ) from error
    except RecaptureNeededError as error:
        raise type(error)(
            f"The sketch of {_said({table: version})} belongs to another history: table "
            f"`{table}` at {newest.path} is at version {newest.version}",
            hint=_offer(tables, store, spec),
        ) from error


def _none_there(
    tables: PinnedTables, store: StoreReader, spec: QuerySpec, wanted: Versions
) -> RecaptureNeededError:
    return RecaptureNeededError(
        f"Query `{spec.name}` has no stored sketch for {_said(wanted)}",
        code="no_sketch_at",
        hint=_offer(tables, store, spec),
    )


def _offer(tables: PinnedTables, store: StoreReader, spec: QuerySpec) -> str:
    """The versions with a sketch, as far as can be told without building each of them."""
    there: dict[tuple[tuple[TableName, TableVersion], ...], None] = {}
    left: dict[TableName, range] = {}
    for kept in store.kept(spec.name):
        for table in kept.versions.keys() - left.keys():
            source = tables.repin(table)
            left[table] = range(oldest_version(source) or 0, source.version + 1)
        is_left = all(version in left[table] for table, version in kept.versions.items())
        if is_left and is_stamp_of_this_release(kept.basis) and may_be_marked(kept, tables):
            there[tuple(sorted(kept.versions.items()))] = None
    is_eager = spec.maintain is MaintainMode.EAGER
    more = "" if is_eager else "; with `maintain: eager` there would be one for every version"
    if not there:
        return f"no usable sketch is left{more}"
    listed = _runs([one[0][1] for one in there]) if _has_one_table(there) else _several(there)
    return f"there are sketches for {listed}{more}"


def _has_one_table(there: Mapping[tuple[tuple[TableName, TableVersion], ...], None]) -> bool:
    return all(len(one) == 1 for one in there)


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
        texts += [str(at) for at in range(low, high + 1)] if is_short else [f"{low} to {high}"]
    older = f", and {len(runs) - _LISTED} older ranges of versions" if len(runs) > _LISTED else ""
    word = "version" if len(runs) == 1 and runs[0][0] == runs[0][1] else "versions"
    return f"{word} {_joined(texts)}{older}"


def _several(there: Mapping[tuple[tuple[TableName, TableVersion], ...], None]) -> str:
    texts = [", ".join(f"{table}={version}" for table, version in one) for one in there]
    older = f"; and {len(texts) - _LISTED} older" if len(texts) > _LISTED else ""
    return "; ".join(texts[:_LISTED]) + older


def _joined(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"


def _said(versions: Versions) -> str:
    """`version 5 of table `t``, of several tables each."""
    return _joined([f"version {version} of table `{table}`" for table, version in versions.items()])
