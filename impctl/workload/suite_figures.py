"""The section `figures` of a suite file: what to measure, on which cases, and how to draw it.

Law: cases name declared queries and no two cases of a figure have the same labels, those that it
has at full size only (`full`) included, so that every cell of a record can be told from the others.
Out of scope: the options of a measure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from yaml.nodes import Node

from impctl.errors import Location
from impctl.workload.names import is_name, refuse_name
from impctl.workload.reading import Entry, FileReading, inside, suggestion, written_at
from impctl.workload.scalars import kind_of
from impctl.workload.suite_data import read_options
from impctl.workload.suite_models import CaseSpec, ChartSpec, FigureSpec, FullSpec, OptionValue

AXES = ("x", "y")

Names = Sequence[str] | None
"""Names of the queries; None where they could not be read."""

Labels = dict[str, str | int | float]

_Lines = dict[frozenset[tuple[str, str | int | float]], int]
"""The labels of the cases read so far, with their lines."""

_REQUIRED = ("title", "measure", "chart")
_OPTIONAL = ("about", "claim", "source", "with", "cases", "full")


def read_figures(
    node: Node | None, queries: Names, measures: Sequence[str], reading: FileReading
) -> tuple[FigureSpec, ...]:
    """The figures that could be read, in file order."""
    entries = reading.entries(node, "`figures`")
    if node is None or entries is None:
        return ()
    if not entries:
        reading.report(node, "`figures` is empty", "write at least one figure")
    found: list[FigureSpec] = []
    for name, entry in entries.items():
        if not is_name(name):
            refuse_name(entry.key, name, "a figure", reading)
        spec = _read_figure(name, entry, queries, measures, reading)
        if spec is not None:
            found.append(spec)
    return tuple(found)


def _read_figure(
    name: str, entry: Entry, queries: Names, measures: Sequence[str], reading: FileReading
) -> FigureSpec | None:
    path = inside("`figures`", name)
    fields = reading.record(entry.value, path, _REQUIRED, _OPTIONAL)
    if fields is None:
        return None
    read = {
        key: reading.text(fields.get(key), inside(path, key))
        for key in ("title", "about", "claim", "source")
    }
    texts = {key: text.strip() for key, text in read.items() if text is not None}
    measure = reading.choice(fields.get("measure"), inside(path, "measure"), measures)
    values, places = _read_with(fields.get("with"), inside(path, "with"), reading)
    lines: _Lines = {}
    cases = _read_cases(fields.get("cases"), inside(path, "cases"), queries, lines, reading)
    if fields.get("cases") is None:
        cases = _every_query(queries, reading.at(entry.key), lines)
    full = _read_full(fields.get("full"), inside(path, "full"), queries, lines, reading)
    chart = _read_chart(fields.get("chart"), inside(path, "chart"), reading)
    title = texts.get("title")
    if title is None or measure is None or chart is None:
        return None
    return FigureSpec(
        name=name,
        title=title,
        about=texts.get("about", ""),
        claim=texts.get("claim", ""),
        source=texts.get("source", ""),
        measure=measure,
        options=values,
        cases=cases,
        chart=chart,
        location=reading.at(entry.key),
        places=places,
        full=full,
    )


def _read_full(
    node: Node | None, path: str, queries: Names, lines: _Lines, reading: FileReading
) -> FullSpec:
    fields = reading.record(node, path, (), ("with", "cases"))
    if fields is None:
        return FullSpec()
    values, places = _read_with(fields.get("with"), inside(path, "with"), reading)
    cases = _read_cases(fields.get("cases"), inside(path, "cases"), queries, lines, reading)
    return FullSpec(values, cases, places)


def _read_with(
    node: Node | None, path: str, reading: FileReading
) -> tuple[Mapping[str, OptionValue], Mapping[str, Location]]:
    """The options of a measure, and where each stands."""
    options = reading.entries(node, path) or {}
    places = {key: reading.at(option.key) for key, option in options.items()}
    return read_options(options, path, reading), places


def _every_query(queries: Names, place: Location, lines: _Lines) -> tuple[CaseSpec, ...]:
    """Without cases every query is one under its own name."""
    cases = tuple(CaseSpec(name, {"query": name}, place) for name in queries or ())
    lines.update((frozenset(case.labels.items()), place.line) for case in cases)
    return cases


def _read_cases(
    node: Node | None, path: str, queries: Names, lines: _Lines, reading: FileReading
) -> tuple[CaseSpec, ...]:
    """The cases of one list, none of them with labels that have a line already."""
    if node is None:
        return ()
    nodes = reading.elements(node, path)
    if nodes is not None and not nodes:
        reading.report(node, f"{path} is empty", "write at least one case, or remove the key")
    found: list[CaseSpec] = []
    for element in nodes or ():
        case = _read_case(element, path, queries, reading)
        if case is None:
            continue
        labels = frozenset(case.labels.items())
        if labels in lines:
            reading.report(
                element,
                f"Two cases in {path} have the same labels",
                f"add a label that distinguishes them; the first is on line {lines[labels]}",
            )
        lines.setdefault(labels, case.location.line)
        found.append(case)
    return tuple(found)


def _read_case(node: Node, path: str, queries: Names, reading: FileReading) -> CaseSpec | None:
    """A query with labels; `query` itself is a label only where there is no other."""
    entries = reading.entries(node, f"a case of {path}")
    if entries is None:
        return None
    if "query" not in entries:
        message = f"Key `query` is missing in a case of {path}"
        reading.report(node, message, "give the name of a query in the suite's workload")
        return None
    query_node = entries["query"].value
    query = reading.text(query_node, inside(path, "query"))
    labels: Labels = {}
    for name, entry in entries.items():
        value = None if name == "query" else _read_label(entry.value, inside(path, name), reading)
        if value is not None:
            labels[name] = value
    if query is None:
        return None
    if queries is not None and query not in queries:
        reading.report(
            query_node,
            f"Query {written_at(query_node, query)} in {path} is not in the suite's workload",
            suggestion(query, list(queries), "its queries"),
        )
    return CaseSpec(query, labels or {"query": query}, reading.at(node))


def _read_label(node: Node, path: str, reading: FileReading) -> str | int | float | None:
    cell = reading.cell(node, path, "a number or text")
    if cell is None:
        return None
    if isinstance(cell.value, bool) or not isinstance(cell.value, int | float | str):
        message = f"{path} must be a number or text, not {kind_of(cell.value)}"
        reading.report(node, message, "put quotes around it to make it text")
        return None
    return cell.value


def _read_chart(node: Node | None, path: str, reading: FileReading) -> ChartSpec | None:
    fields = reading.record(node, path, ("x", "y"), ("series", "log"))
    if fields is None:
        return None
    x = reading.text(fields.get("x"), inside(path, "x"))
    y = _words(fields.get("y"), inside(path, "y"), reading)
    series = _words(fields.get("series"), inside(path, "series"), reading)
    log = _words(fields.get("log"), inside(path, "log"), reading, AXES)
    if x is None or not y:
        return None
    return ChartSpec(x, y, series, log)


def _words(
    node: Node | None, path: str, reading: FileReading, known: Sequence[str] | None = None
) -> tuple[str, ...]:
    """A list of words, out of `known` where given."""
    nodes = reading.elements(node, path)
    if node is not None and nodes is not None and not nodes:
        reading.report(node, f"{path} is empty", "give at least one, or remove the key")
    if known is None:
        words = [reading.text(element, path) for element in nodes or ()]
    else:
        words = [reading.choice(element, path, known) for element in nodes or ()]
    return tuple(word for word in words if word is not None)
