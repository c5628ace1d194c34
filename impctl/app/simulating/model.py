"""All that settings share: the commits, what steps take, and the choice of state.

Law: a setting changes nothing of another one's; the same commits, runs and settings give the same
figures. Out of scope: commits (`simulating.arrived`), runs in virtual time
(`simulating.virtual_run`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from impctl.app.maintaining.due.looking import trigger_of
from impctl.app.maintaining.estimates import recorded
from impctl.app.maintaining.keeping.bounds import bounds_of
from impctl.app.results.simulated import SimulatedSetting
from impctl.app.simulating.arrived import Replay
from impctl.app.simulating.figures import figures_of
from impctl.app.simulating.kept_pieces import Choice, pieces_of
from impctl.app.simulating.lines import lines_of
from impctl.app.simulating.noise import Noise, steady
from impctl.app.simulating.replayed_query import ReplayedQuery, Stream
from impctl.app.simulating.setting import Setting
from impctl.app.simulating.step_costs import StepCosts
from impctl.app.simulating.virtual_run import Ran, VirtualRun
from impctl.app.workbench.workbench import Workbench
from impctl.store.reader import StoreReader
from impctl.types import QueryName, TableName
from impctl.workload.models import QuerySpec, Trigger


class Model:
    """The queries over what is replayed, in any setting."""

    def __init__(
        self,
        desk: Workbench,
        store: StoreReader,
        specs: Sequence[QuerySpec],
        tables: Mapping[QueryName, Sequence[TableName]],
        replay: Replay,
        look: float,
        noise: Callable[[], Noise] = lambda: steady,
    ) -> None:
        """`noise` makes that of a run, which are each as if there were no other."""
        self.replay = replay
        self._specs, self._look, self._noise = specs, look, noise
        self._pieces = pieces_of(desk, store, specs, replay)
        held = {spec.name: store.load(spec.name) for spec in specs}
        self._lines = {
            name: lines_of(() if stored is None else recorded(store, stored))
            for name, stored in held.items()
        }
        self._ran: dict[tuple[tuple[Trigger, ...], int, float], Ran] = {}
        """By what decides a run; settings may come to the same."""
        made: dict[frozenset[TableName], Stream] = {}
        self._streams = {name: self._stream(made, frozenset(tables[name])) for name in tables}

    @property
    def costs_by(self) -> dict[QueryName, str]:
        """What tells what the steps of each query take."""
        return {name: str(lines.by) for name, lines in self._lines.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is to be known of the figures."""
        return tuple(self._warnings())

    def run(self, setting: Setting, since: float | None = None) -> SimulatedSetting:
        """What a setting comes to, over all that is replayed or what comes after `since`."""
        begin = self.replay.since if since is None else since
        choice = self._choice(setting)
        triggers = tuple(setting.trigger or trigger_of(spec) for spec in self._specs)
        key = (triggers, id(choice.prices), begin)
        if key not in self._ran:
            queries = [
                self._query(spec, trigger, choice, begin)
                for spec, trigger in zip(self._specs, triggers, strict=True)
            ]
            self._ran[key] = VirtualRun(queries, self._look, self._noise()).run(
                begin, self.replay.until
            )
        return figures_of(setting, choice, self._ran[key])

    def _choice(self, setting: Setting) -> Choice:
        trigger = setting.trigger
        specs = self._specs
        if trigger is not None:
            specs = [replace(spec, trigger=trigger) for spec in specs]
        chosen = self._pieces.as_run if setting.is_present else self._pieces.within
        return chosen(setting.disk, bounds_of(specs))

    def _query(
        self, spec: QuerySpec, trigger: Trigger, choice: Choice, since: float
    ) -> ReplayedQuery:
        stream = self._streams[spec.name]
        costs = StepCosts(self._lines[spec.name], choice.prices.get(spec.name, {}))
        span = self.replay.until - self.replay.since
        result = ReplayedQuery(
            spec.name, trigger, stream, costs, stream.all.rows[-1] / span if span > 0 else 0.0
        )
        if since > self.replay.since:
            result.pin(since)
        return result

    def _stream(
        self, made: dict[frozenset[TableName], Stream], tables: frozenset[TableName]
    ) -> Stream:
        if tables not in made:
            made[tables] = Stream.made({name: self.replay.commits[name] for name in sorted(tables)})
        return made[tables]

    def _warnings(self) -> Iterator[str]:
        guessed = sum(one.guessed for one in self.replay.commits.values())
        if guessed:
            yield (
                f"the log has no row count for {guessed:,} commits, so their rows are estimated "
                "from bytes"
            )
        for name, why in self._pieces.kept.troubles.items():
            yield f"the replay uses the present state of `{name}`: {why}"
