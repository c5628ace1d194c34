"""Use case: what other budgets and triggers would have come to, by commits of the past.

Law: no row of a table is read, no Spark started and nothing written but a report that is asked for;
what is due and what is kept is decided by the functions that decide it in earnest, over a clock
that is set forward. Queries that were never captured are left out, and told.
Out of scope: what a setting comes to (`app.simulating`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from impctl.app.maintaining.due.looking import now_of, trigger_of
from impctl.app.preparing.expiry import has_expiry
from impctl.app.results.results import Outcome, Result
from impctl.app.results.simulated import RecordedRuns, SimulateResult
from impctl.app.simulating.arrivals_file import replay_of_file
from impctl.app.simulating.arrived import Replay
from impctl.app.simulating.histories import replay_of_store
from impctl.app.simulating.late import Late, late_from
from impctl.app.simulating.model import Model
from impctl.app.simulating.recorded import compared, recorded_of
from impctl.app.simulating.setting import Setting, disks_from, settings_of, trigger_from
from impctl.app.workbench.settings import SimulateRequest, disk_of
from impctl.app.workbench.workbench import Workbench
from impctl.errors import UsageError, count_text
from impctl.store.reader import StoreReader
from impctl.types import QueryName, TableName
from impctl.workload.models import QuerySpec

NOTHING_TO_REPLAY = "nothing_to_replay"
_NO_EXPIRY = "the replay ignores rows that expire: figures cover commits only"
_FEW = 20
"""Commits below which a replay says little."""
_TAIL = 60.0
"""Seconds after the last commit of a file that are replayed, beside the longest bound."""


def simulate(
    desk: Workbench, queries: Sequence[QueryName] | None, request: SimulateRequest
) -> Outcome:
    """One result for all settings; UsageError where there is nothing to replay."""
    triggers = [trigger_from(text) for text in request.triggers]
    late = None if request.late is None else late_from(request.late)
    present = disk_of(desk.settings, desk.workload)
    settings = settings_of(present, disks_from(request.disks), triggers)
    store = desk.reading_store()
    specs, warnings = _captured(desk, store, queries)
    assert store is not None, "what was captured is in a store"
    tables = _tables(store, specs)
    replay = _replay(desk, store, specs, tables, settings, request, late)
    if not replay.count:
        raise _nothing(replay, request)
    if replay.count < _FEW:
        warnings.append(
            f"only {count_text(replay.count, 'commit')} to replay, so figures are rough"
        )
    if has_expiry(desk.workload.tables[name] for name in _names(tables)):
        warnings.append(_NO_EXPIRY)
    model = Model(desk, store, specs, tables, replay, request.look)
    figures = []
    for number, setting in enumerate(settings, start=1):
        desk.reporter.step(f"replaying {setting.name}", number, len(settings))
        figures.append(model.run(setting))
    result = SimulateResult(
        source=replay.source,
        since=datetime.fromtimestamp(replay.since, UTC),
        until=datetime.fromtimestamp(replay.until, UTC),
        look_s=request.look,
        commits={name: len(one) for name, one in replay.commits.items()},
        rows=replay.rows,
        costs_by=model.costs_by,
        settings=tuple(figures),
        recorded=_recorded(store, model, settings[0], request),
        late=None if late is None else late.text,
    )
    results: list[Result] = [result]
    if request.report is not None:
        from impctl.app.simulating.page import write_page

        results.append(write_page(request.report, result, desk.reserved))
    return Outcome(tuple(results), (*warnings, *replay.warnings, *model.warnings))


def _captured(
    desk: Workbench, store: StoreReader | None, queries: Sequence[QueryName] | None
) -> tuple[list[QuerySpec], list[str]]:
    """The queries that have a sketch, and what is said of the others."""
    asked = desk.sketched(queries)
    known = frozenset[QueryName]() if store is None else frozenset(store.queries())
    result = [spec for spec in asked if spec.name in known]
    if not result:
        raise UsageError(
            "None of the queries has been captured, so the cost of maintaining them is unknown",
            hint="run `impctl capture`, and `impctl maintain` a few times",
            code=NOTHING_TO_REPLAY,
        )
    left = [f"`{spec.name}`" for spec in asked if spec.name not in known]
    told = f"not replayed, because never captured: {', '.join(left)}; run `impctl capture`"
    return result, [told] if left else []


def _tables(
    store: StoreReader, specs: Sequence[QuerySpec]
) -> dict[QueryName, tuple[TableName, ...]]:
    result = {}
    for spec in specs:
        stored = store.load(spec.name)
        assert stored is not None, "it was captured"
        result[spec.name] = tuple(stored.versions)
    return result


def _names(tables: Mapping[QueryName, Sequence[TableName]]) -> list[TableName]:
    return sorted({name for table in tables.values() for name in table})


def _replay(
    desk: Workbench,
    store: StoreReader,
    specs: Sequence[QuerySpec],
    tables: Mapping[QueryName, Sequence[TableName]],
    settings: Sequence[Setting],
    request: SimulateRequest,
    late: Late | None,
) -> Replay:
    names = _names(tables)
    if request.arrivals is not None:
        triggers = [trigger_of(spec) for spec in specs]
        triggers += [one.trigger for one in settings if one.trigger is not None]
        spans = [span for one in triggers for span in (one.fresh_within, one.every) if span]
        tail = max([_TAIL, request.look, *spans]) + request.look
        return replay_of_file(request.arrivals, names, desk.workload.tables, tail, late)
    now = now_of(desk)
    since = None if request.since is None else now - request.since
    return replay_of_store(desk, store, names, since, now, late)


def _nothing(replay: Replay, request: SimulateRequest) -> UsageError:
    if request.arrivals is not None:
        hint = "write a line for each commit: time,table,inserted,deleted"
        return UsageError(
            f"No line of {request.arrivals} names a table of these queries",
            hint=hint,
            code=NOTHING_TO_REPLAY,
        )
    return UsageError(
        "No commit is known in the requested time span",
        hint="`capture` and `maintain` store the history of commits from the tables' logs; give "
        "a longer `--since`, or commits in a file with `--arrivals`",
        code=NOTHING_TO_REPLAY,
    )


def _recorded(
    store: StoreReader, model: Model, present: Setting, request: SimulateRequest
) -> RecordedRuns | None:
    """What was recorded of the same time; None where commits are others than came then."""
    if request.arrivals is not None or request.late is not None:
        return None
    replay = model.replay
    result = recorded_of(store, tuple(model.costs_by), replay.since, replay.until)
    if result is None:
        return None
    return compared(result, model.run(present, since=result.since), request.look)
