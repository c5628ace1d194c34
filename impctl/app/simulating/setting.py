"""The settings that are compared: a budget and a trigger each, that of the file first.

Law: every budget by every trigger that is asked for; what is not asked for is as the file has it.
No setting is there twice. Out of scope: what they come to (`simulating.figures`).
"""

from __future__ import annotations

from collections.abc import Sequence

from impctl.app.results.amounts import size_text
from impctl.errors import UsageError
from impctl.values import dataclass
from impctl.workload.models import Trigger
from impctl.workload.sections import read_trigger
from impctl.workload.yaml import SIZE_HINT, FileReading, Lines, YamlFault, compose, size_from

ALL = "all"
"""A budget that keeps all."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Bytes for all state (None: all is kept), and a trigger for all queries (None: their own)."""

    disk: int | None
    trigger: Trigger | None
    is_present: bool = False

    @property
    def name(self) -> str:
        """In a few words."""
        if self.is_present:
            return "as it is"
        kept = "all kept" if self.disk is None else size_text(self.disk)
        return kept if self.trigger is None else f"{kept}, {self.trigger.text}"


def settings_of(
    present: int | None, disks: Sequence[int | None], triggers: Sequence[Trigger]
) -> list[Setting]:
    """All settings; `present` is the budget of the file, None without one."""
    result = [Setting(present, None, is_present=True)]
    result += [
        Setting(disk, trigger)
        for disk in (dict.fromkeys(disks) if disks else (present,))
        for trigger in (dict.fromkeys(triggers) if triggers else (None,))
        if trigger is not None or disks
    ]
    return result


def disks_from(texts: Sequence[str]) -> list[int | None]:
    """Budgets as flags give them: sizes, several with commas, or `all`; UsageError else."""
    return [_disk(word.strip()) for text in texts for word in text.split(",")]


def _disk(word: str) -> int | None:
    if word.lower() == ALL:
        return None
    try:
        return size_from(word)
    except ValueError:
        hint = f"{SIZE_HINT}, or `{ALL}`"
        raise UsageError(f"`--disk` is invalid: {word}", hint=hint) from None


def trigger_from(text: str) -> Trigger:
    """A trigger as the file has it: a word or `key: value`; WorkloadError for what is none."""
    reading = FileReading(Lines("--trigger", text), {})
    try:
        root = compose(text)
    except YamlFault as fault:
        reading.report_index(fault.index, fault.message, fault.hint)
        root = None
    result = read_trigger(root, "`--trigger`", reading)
    problem = next(iter(reading.problems), None)
    if result is None or problem is not None:
        message = "`--trigger` is empty" if problem is None else problem.message
        hint = None if problem is None else problem.hint
        raise UsageError(
            message,
            hint=hint or "write `commit`, or `fresh_within: 10m`",
            location=None if problem is None else problem.location,
        )
    return result
