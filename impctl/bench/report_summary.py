"""The summary and the facts of a run as HTML.

Law: all text is escaped; nothing is said here that `summary` or the record does not say.
Out of scope: what to say (`summary`), figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from impctl.bench.quantity import Unit, number, readable, times
from impctl.bench.record import Record, RecordKind
from impctl.bench.report_table import plain_table
from impctl.bench.report_text import prose

if TYPE_CHECKING:
    from impctl.bench.headlines import Headline
    from impctl.bench.summary import Section, Summary

_MACHINE = ("cpu", "cores", "memory_gb", "commit", "spark")
"""Facts with a place of their own; all others are versions."""


def summary_section(summary: Summary) -> str:
    """Alarms, the numbers to remember, and the sections."""
    alarms = "".join(f"<li>{prose(text)}</li>" for text in summary.alarms)
    alarm = (
        f'<div class="alarm" role="alert"><h3>Wrong answers</h3><ul>{alarms}</ul></div>'
        if alarms
        else ""
    )
    heads = "".join(_headline(one) for one in summary.headlines)
    parts = [
        '<section id="summary" aria-labelledby="summary-title">',
        '<h2 id="summary-title">Summary</h2>',
        alarm,
        f'<div class="headlines">{heads}</div>' if heads else "",
        *(_section(section) for section in summary.sections),
        "</section>",
    ]
    return "\n".join(part for part in parts if part)


def facts(record: Record) -> str:
    """When, where and how it ran, as a list of names and values."""
    pairs = {
        "Started": _when(record.started),
        "Took": readable(record.elapsed_s * 1000, Unit.MS),
        "Scale": _scale(record),
        "Rows": _rows(record.tables),
        "Repeat": f"{number(record.repeat)} {'run' if record.repeat == 1 else 'runs'} requested",
        "Seed": str(record.seed),
        "Noise": _noise(record.noise),
        **_machine(record.machine),
    }
    return fact_list(pairs)


def fact_list(pairs: Mapping[str, str]) -> str:
    """Names and values side by side; what has no value is left out."""
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in pairs.items()
        if value
    )
    return f'<dl class="facts">{shown}</dl>'


def _noise(noise: float) -> str:
    """One-sided: equal work never takes less than at its quickest."""
    return f"equal work took at most {readable(noise, Unit.SHARE)} longer"


def _scale(record: Record) -> str:
    """Of a suite alone: the tables of a workload are as large as they are."""
    return f"{times(record.scale)} the suite's rows" if record.kind is RecordKind.SUITE else ""


def _rows(tables: Mapping[str, int]) -> str:
    """Tables by their rows, since many are equally large."""
    names: dict[int, list[str]] = {}
    for name, rows in tables.items():
        names.setdefault(rows, []).append(name)
    return "; ".join(f"{number(rows)} in {', '.join(group)}" for rows, group in names.items())


def _machine(machine: Mapping[str, str]) -> dict[str, str]:
    cores, memory = machine.get("cores", ""), machine.get("memory_gb", "")
    parts = [
        machine.get("cpu", ""),
        f"{cores} {'core' if cores == '1' else 'cores'}" if cores else "",
        f"{memory} GB memory" if memory else "",
    ]
    versions = [f"{name} {value}" for name, value in machine.items() if name not in _MACHINE]
    return {
        "Commit": machine.get("commit", ""),
        "Machine": ", ".join(part for part in parts if part),
        "Spark": machine.get("spark", ""),
        "Versions": ", ".join(versions),
    }


def _when(started: str) -> str:
    try:
        moment = datetime.fromisoformat(started)
    except ValueError:
        return started
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC"


def _headline(one: Headline) -> str:
    return (
        f'<div class="headline"><p class="value">{escape(one.value)}</p>'
        f'<p>{escape(one.meaning)}</p><p class="where">{escape(one.where)}</p></div>'
    )


def _section(section: Section) -> str:
    paragraphs = "".join(f"<p>{prose(text)}</p>" for text in section.paragraphs)
    points = "".join(f"<li>{prose(text)}</li>" for text in section.points)
    listed = f"<ul>{points}</ul>" if points else ""
    rows = plain_table(section) if section.rows else ""
    return f"<h3>{escape(section.title)}</h3>\n{paragraphs}{listed}{rows}"
