"""The figures of a setting, out of its runs in virtual time.

Law: of ages the given share are at most the quantile; without a step there is none. What is still
pending at the end counts for the worst age, as old as it is then.
Out of scope: the runs (`simulating.virtual_run`), how figures look (`cli.output.simulated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from impctl.app.results.simulated import SimulatedSetting
from impctl.app.simulating.kept_pieces import Choice
from impctl.app.simulating.setting import Setting
from impctl.app.simulating.virtual_run import Ran


def figures_of(setting: Setting, choice: Choice, ran: Ran) -> SimulatedSetting:
    """What is told of a setting."""
    ages = sorted(ran.ages)
    return SimulatedSetting(
        setting=setting.name,
        present=setting.is_present,
        disk_bytes=setting.disk,
        trigger=None if setting.trigger is None else setting.trigger.text,
        runs=ran.runs,
        steps=ran.steps,
        work_ms=ran.work_s * 1000,
        age_s=quantile(ages, 0.5),
        age_99_s=quantile(ages, 0.99),
        age_worst_s=max([*ages[-1:], *ran.left], default=None),
        late=ran.late,
        state_bytes=choice.bytes,
        over_budget=choice.exceeds,
        reads=ran.reads,
        conversions=choice.conversions,
    )


def quantile(rising: Sequence[float], share: float) -> float | None:
    """The least of the numbers that so many are no greater than; None without numbers."""
    return rising[max(0, ceil(share * len(rising)) - 1)] if rising else None
