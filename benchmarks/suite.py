"""Suite files: data to generate, a workload over it, and figures to measure.

Reads a file as `impctl.workload` reads a workload: the sections below `workload:` by the same code,
and one error that lists every problem. Paths of tables are relative to the folder of the generated
data. Sizes are those at scale 1. No two cases of a figure have the same labels, those of `full`
included, so that every cell of a record can be told from the others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace
from yaml.nodes import Node, SequenceNode

from benchmarks.figures import CaseSpec, FigureSpec, OptionValue
from impctl.bench.record import Chart, Figure
from impctl.errors import Location, UsageError
from impctl.workload.load import all_problems, open_document, read_text, read_workload
from impctl.workload.models import Workload
from impctl.workload.scalars import kind_text
from impctl.workload.sections import is_name, read_path, read_version, refuse_name
from impctl.workload.yaml import FileReading, MappingEntry, inside, suggestion, written_at

SUITES = Path(__file__).parent / "suites"
MAX_REPEAT = 1000
MAX_SCALE = 1000
MAX_ROWS = 2**31 - 1
AXES = ("x", "y")

_SECTIONS = ("version", "workload", "figures")
_CHOICES = ("name", "title", "seed", "scale", "repeat", "data")
_Names = Sequence[str] | None
"""Names of the queries; None where they could not be read."""

_Labels = dict[str, str | int | float]

_Lines = dict[frozenset[tuple[str, str | int | float]], int]
"""The labels of the cases read so far, with their lines."""

_OF_DATA = ("example", "rows", "least", "source")
_OF_FIGURE = ("title", "measure", "chart")
_CHOICES_OF_FIGURE = ("about", "claim", "source", "with", "cases", "full")


class DataSpec(Struct, frozen=True):
    """A table to generate below the suite's data folder.

    `rows` is at scale 1 and shrinks with the scale, not below `least`; `options` are those of the
    example (groups, sorted, seed, ...). `source` is the file or folder an example is made from.
    """

    name: str
    example: str
    rows: int | None
    least: int
    options: Mapping[str, OptionValue]
    source: str | None
    location: Location


class FullSpec(Struct, frozen=True):
    """What a figure has from scale 1 on: options that win over its own, and more cases."""

    options: Mapping[str, OptionValue] = field(default_factory=dict)
    cases: tuple[CaseSpec, ...] = ()
    places: Mapping[str, Location] = field(default_factory=dict)
    """The location of each option."""


class Suite(Struct, frozen=True, kw_only=True):
    """A whole suite file; `scale` and `repeat` are what holds where no option says otherwise."""

    name: str
    title: str
    file: str
    seed: int
    scale: float
    repeat: int
    data: Mapping[str, DataSpec]
    workload: Workload
    figures: tuple[FigureSpec, ...]
    full: Mapping[str, FullSpec]

    def figures_at(self, scale: float) -> tuple[FigureSpec, ...]:
        """The figures as a run of that scale measures them."""
        if scale < 1:
            return self.figures
        return tuple(_whole(figure, self.full[figure.name]) for figure in self.figures)


def _whole(figure: FigureSpec, full: FullSpec) -> FigureSpec:
    return replace(
        figure,
        options={**figure.options, **full.options},
        cases=(*figure.cases, *full.cases),
        places={**figure.places, **full.places},
    )


def suite_files() -> dict[str, Path]:
    """The suites of this folder by name."""
    return {path.stem: path for path in sorted(SUITES.glob("*.yaml"))}


def suite_file(word: str) -> Path:
    """The file that `word` names: a path, or else one of this folder's suites."""
    path = Path(word)
    known = suite_files()
    if path.is_file():
        return path
    if word not in known:
        raise UsageError(
            f"`{word}` is neither a file nor one of the suites",
            code="suite_unknown",
            hint=suggestion(word, list(known), "the suites"),
        )
    return known[word]


def load_suite(path: Path, folder: Path, examples: Sequence[str], measures: Sequence[str]) -> Suite:
    """The suite in the file `path`, its tables below `folder`; it may use these examples of data
    and these measures."""
    reading, root = open_document(path, read_text(path), os.environ)
    suite = None
    if root is not None:
        suite = _read_root(path, root, folder, examples, measures, reading)
    if suite is None or reading.problems:
        raise all_problems(path, reading)
    return suite


def _read_root(
    path: Path,
    root: Node,
    folder: Path,
    examples: Sequence[str],
    measures: Sequence[str],
    reading: FileReading,
) -> Suite | None:
    fields = reading.record(root, "the suite file", _SECTIONS, _CHOICES)
    if fields is None:
        return None
    read_version(fields.get("version"), "`version`", reading)
    reading.base = path.parent.resolve()
    data = _read_data(fields.get("data"), examples, reading)
    workload = _read_workload(fields.get("workload"), path, folder, reading)
    read = _read_figures(fields.get("figures"), _queries(workload), measures, reading)
    name = reading.text(fields["name"], "`name`") if "name" in fields else path.stem
    title = reading.text(fields["title"], "`title`") if "title" in fields else name
    seed = reading.whole_number(fields.get("seed"), "`seed`", 2**31 - 1, "1 serves")
    scale = _read_scale(fields.get("scale"), reading)
    repeat = reading.whole_number(fields.get("repeat"), "`repeat`", MAX_REPEAT, "5 is usual")
    if workload is None or name is None or title is None:
        return None
    return Suite(
        name=name,
        title=title,
        file=str(path),
        seed=1 if seed is None else seed,
        scale=1.0 if scale is None else scale,
        repeat=5 if repeat is None else repeat,
        data=data,
        workload=workload,
        figures=tuple(figure for figure, _ in read),
        full={figure.name: full for figure, full in read},
    )


def _read_workload(
    node: Node | None, path: Path, folder: Path, reading: FileReading
) -> Workload | None:
    return read_workload(Workload, node, "`workload`", path, folder.absolute(), reading)


def _queries(workload: Workload | None) -> Sequence[str] | None:
    """Names of the queries; None where it is not known which there are."""
    return None if workload is None else list(workload.queries)


def _read_scale(node: Node | None, reading: FileReading) -> float | None:
    cell = reading.cell(node, "`scale`", "a number")
    if node is None or cell is None:
        return None
    if isinstance(cell.value, bool) or not isinstance(cell.value, int | float):
        message = f"`scale` must be a number, not {kind_text(cell.value)}"
        reading.report(node, message, "write a number without quotes, for example 0.05")
        return None
    if not 0 < cell.value <= MAX_SCALE:
        message = f"`scale` must be above 0 and at most {MAX_SCALE}"
        reading.report(node, message, "1 is the full size")
        return None
    return float(cell.value)


def _read_data(
    node: Node | None, examples: Sequence[str], reading: FileReading
) -> Mapping[str, DataSpec]:
    """The tables to generate that could be read, in file order."""
    result: dict[str, DataSpec] = {}
    for name, entry in (reading.entries(node, "`data`") or {}).items():
        if not is_name(name):
            refuse_name(entry.key, name, "generated data", reading)
        spec = _read_spec(name, entry, examples, reading)
        if spec is not None:
            result[name] = spec
    return result


def _read_spec(
    name: str, entry: MappingEntry, examples: Sequence[str], reading: FileReading
) -> DataSpec | None:
    path = inside("`data`", name)
    entries = reading.entries(entry.value, path)
    if entries is None:
        return None
    if "example" not in entries:
        reading.report(entry.value, f"Key `example` is missing in {path}", "add `example:`")
    nodes = {key: inner.value for key, inner in entries.items()}
    example = reading.choice(nodes.get("example"), inside(path, "example"), examples)
    usual = "the papers use 10000000"
    rows = reading.whole_number(nodes.get("rows"), inside(path, "rows"), MAX_ROWS, usual)
    least = reading.whole_number(nodes.get("least"), inside(path, "least"), MAX_ROWS, usual)
    source = None
    if "source" in nodes:
        source = read_path(nodes["source"], inside(path, "source"), reading)
    options = {key: inner for key, inner in entries.items() if key not in _OF_DATA}
    values = _read_options(options, path, reading)
    if example is None:
        return None
    least = 1 if least is None else least
    return DataSpec(name, example, rows, least, values, source, reading.location(entry.key))


def _read_options(
    entries: Mapping[str, MappingEntry], path: str, reading: FileReading
) -> Mapping[str, OptionValue]:
    """Options: each a single value or a list of them."""
    result: dict[str, OptionValue] = {}
    for name, entry in entries.items():
        value = _read_option(entry.value, inside(path, name), reading)
        if value is not None:
            result[name] = value
    return result


def _read_option(node: Node, path: str, reading: FileReading) -> OptionValue | None:
    if not isinstance(node, SequenceNode):
        return _read_single(node, path, reading)
    nodes = reading.elements(node, path)
    if nodes is None:
        return None
    if not nodes:
        reading.report(node, f"{path} is empty", "write at least one value, or remove the key")
        return None
    values = [_read_single(element, path, reading) for element in nodes]
    kept: list[int | float | str] = [value for value in values if value is not None]
    return tuple(kept) if len(kept) == len(values) else None


def _read_single(node: Node, path: str, reading: FileReading) -> int | float | str | bool | None:
    cell = reading.cell(node, path, "a number, text, or true or false")
    if cell is None:
        return None
    if not isinstance(cell.value, int | float | str):
        message = f"{path} must be a number, text, or true or false, not {kind_text(cell.value)}"
        reading.report(node, message, "put quotes around it to make it text")
        return None
    return cell.value


def _read_figures(
    node: Node | None, queries: _Names, measures: Sequence[str], reading: FileReading
) -> list[tuple[FigureSpec, FullSpec]]:
    """The figures that could be read, in file order, each with what it has at full size."""
    entries = reading.entries(node, "`figures`")
    if node is None or entries is None:
        return []
    if not entries:
        reading.report(node, "`figures` is empty", "write at least one figure")
    result: list[tuple[FigureSpec, FullSpec]] = []
    for name, entry in entries.items():
        if not is_name(name):
            refuse_name(entry.key, name, "a figure", reading)
        spec = _read_figure(name, entry, queries, measures, reading)
        if spec is not None:
            result.append(spec)
    return result


def _read_figure(
    name: str, entry: MappingEntry, queries: _Names, measures: Sequence[str], reading: FileReading
) -> tuple[FigureSpec, FullSpec] | None:
    path = inside("`figures`", name)
    fields = reading.record(entry.value, path, _OF_FIGURE, _CHOICES_OF_FIGURE)
    if fields is None:
        return None
    read = {
        key: reading.text(fields.get(key), inside(path, key))
        for key in ("title", "about", "claim", "source")
    }
    title, about, claim, source = ((text or "").strip() for text in read.values())
    measure = reading.choice(fields.get("measure"), inside(path, "measure"), measures)
    values, places = _read_with(fields.get("with"), inside(path, "with"), reading)
    lines: _Lines = {}
    cases = _read_cases(fields.get("cases"), inside(path, "cases"), queries, lines, reading)
    if fields.get("cases") is None:
        cases = _every_query(queries, reading.location(entry.key), lines)
    full = _read_full(fields.get("full"), inside(path, "full"), queries, lines, reading)
    chart = _read_chart(fields.get("chart"), inside(path, "chart"), reading)
    if read["title"] is None or measure is None or chart is None:
        return None
    spec = FigureSpec(
        figure=Figure(name, title, about, chart, claim, source),
        measure=measure,
        options=values,
        cases=cases,
        location=reading.location(entry.key),
        places=places,
    )
    return spec, full


def _read_full(
    node: Node | None, path: str, queries: _Names, lines: _Lines, reading: FileReading
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
    places = {key: reading.location(option.key) for key, option in options.items()}
    return _read_options(options, path, reading), places


def _every_query(queries: _Names, location: Location, lines: _Lines) -> tuple[CaseSpec, ...]:
    """Without cases every query is one under its own name."""
    cases = tuple(CaseSpec(name, {"query": name}, location) for name in queries or ())
    lines.update((frozenset(case.labels.items()), location.line) for case in cases)
    return cases


def _read_cases(
    node: Node | None, path: str, queries: _Names, lines: _Lines, reading: FileReading
) -> tuple[CaseSpec, ...]:
    """The cases of one list, none of them with labels that have a line already."""
    if node is None:
        return ()
    nodes = reading.elements(node, path)
    if nodes is not None and not nodes:
        reading.report(node, f"{path} is empty", "write at least one case, or remove the key")
    case_specs: list[CaseSpec] = []
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
        case_specs.append(case)
    return tuple(case_specs)


def _read_case(node: Node, path: str, queries: _Names, reading: FileReading) -> CaseSpec | None:
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
    labels: _Labels = {}
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
    return CaseSpec(query, labels or {"query": query}, reading.location(node))


def _read_label(node: Node, path: str, reading: FileReading) -> str | int | float | None:
    cell = reading.cell(node, path, "a number or text")
    if cell is None:
        return None
    if isinstance(cell.value, bool) or not isinstance(cell.value, int | float | str):
        message = f"{path} must be a number or text, not {kind_text(cell.value)}"
        reading.report(node, message, "put quotes around it to make it text")
        return None
    return cell.value


def _read_chart(node: Node | None, path: str, reading: FileReading) -> Chart | None:
    fields = reading.record(node, path, ("x", "y"), ("series", "log"))
    if fields is None:
        return None
    x = reading.text(fields.get("x"), inside(path, "x"))
    y = _words(fields.get("y"), inside(path, "y"), reading)
    series = _words(fields.get("series"), inside(path, "series"), reading)
    log = _words(fields.get("log"), inside(path, "log"), reading, AXES)
    if x is None or not y:
        return None
    return Chart(x, y, series, log)


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
