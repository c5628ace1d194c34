"""Frozen records of what `simulate` replays, and what it comes to in each setting.

Law: as in `app.results.results`, of which these are a part; what nobody can tell is None.
Out of scope: reckoning it (`app.simulating`), how it looks (`cli.output.simulated`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from impctl.values import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSetting:
    """One budget with one trigger, and what they come to over the time that is replayed.

    `disk_bytes` None keeps all, `trigger` None is each query's own. `steps` are queries maintained,
    `work_ms` is what these take; ages are of the oldest change in a step when it is done, the
    median, that of 99 in 100, and the worst. `late` steps end after their bound. `reads` of sides
    from files are expected, `conversions` are queries whose state is kept otherwise now.
    """

    setting: str
    present: bool
    disk_bytes: int | None
    trigger: str | None
    runs: int
    steps: int
    work_ms: float
    age_s: float | None
    age_99_s: float | None
    age_worst_s: float | None
    late: int
    state_bytes: int
    over_budget: bool
    reads: float
    conversions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRuns:
    """What the store recorded from `since` on, beside what the model says of the same time.

    Shares say how far the model is off: 0.1 is a tenth too much, None where nothing tells.
    """

    since: datetime
    runs: int
    steps: int
    work_ms: float
    model_runs: int
    model_steps: int
    model_work_ms: float
    runs_off: float
    steps_off: float
    work_off: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateResult:
    """What was replayed, and what each setting comes to, the present one first.

    `commits` are by table, `costs_by` says of each query what tells what its steps take: `runs`,
    its `capture`, or `priors`. `recorded` is None where nothing was. `late` says how the rows of
    commits are spread, None where they come with these.
    """

    source: str
    since: datetime
    until: datetime
    look_s: float
    commits: Mapping[str, int]
    rows: int
    costs_by: Mapping[str, str]
    settings: tuple[SimulatedSetting, ...]
    recorded: RecordedRuns | None = None
    late: str | None = None
