"""Reading a suite file: bytes to a `Suite`, or one error that lists every problem.

Law: as for a workload file (`workload.load`), whose sections stand under `workload:` and are read
by the same code; paths of its tables are relative to the folder of the generated data.
Out of scope: what an example or a measure does with its options (`app.measuring`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from yaml.nodes import Node

from impctl.values import dataclass
from impctl.workload.load import (
    MAX_BYTES,
    OPTIONAL,
    REQUIRED,
    all_problems,
    check_version,
    is_suite,
    open_document,
    read_file,
    read_workload,
)
from impctl.workload.models import Workload
from impctl.workload.positions import YamlFault, compose
from impctl.workload.reading import FileReading
from impctl.workload.scalars import kind_of
from impctl.workload.suite_data import read_data
from impctl.workload.suite_figures import read_figures
from impctl.workload.suite_models import Suite

MAX_REPEAT = 1000
MAX_SCALE = 1000

_SECTIONS = ("version", "workload", "figures")
_CHOICES = ("name", "title", "seed", "scale", "repeat", "data")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words a suite file may use: examples of data to generate, and measures."""

    examples: Sequence[str]
    measures: Sequence[str]


def holds_suite(path: Path) -> bool:
    """Whether the file at `path` is a suite; False where it cannot be read."""
    try:
        data = read_file(path, MAX_BYTES)
        return len(data) <= MAX_BYTES and is_suite(compose(data.decode("utf-8-sig")))
    except (OSError, ValueError, YamlFault):
        return False


def load_suite(path: Path, env: Mapping[str, str], folder: Path, words: Vocabulary) -> Suite:
    """The suite in the file `path`, its tables below `folder`, variables resolved from `env`."""
    reading, root = open_document(path, env)
    suite = None if root is None else _read_root(path, root, folder, words, reading)
    if suite is None or reading.problems:
        raise all_problems(path, reading)
    return suite


def _read_root(
    path: Path, root: Node, folder: Path, words: Vocabulary, reading: FileReading
) -> Suite | None:
    fields = reading.record(root, "the suite file", _SECTIONS, _CHOICES)
    if fields is None:
        return None
    check_version(fields.get("version"), reading)
    data = read_data(fields.get("data"), words.examples, path.parent.resolve(), reading)
    workload = _read_workload(fields.get("workload"), path, folder, reading)
    figures = read_figures(fields.get("figures"), _queries(workload), words.measures, reading)
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
        figures=figures,
    )


def _read_workload(
    node: Node | None, path: Path, folder: Path, reading: FileReading
) -> Workload | None:
    fields = reading.record(node, "`workload`", REQUIRED, OPTIONAL)
    return None if fields is None else read_workload(fields, path, folder.absolute(), reading)


def _queries(workload: Workload | None) -> Sequence[str] | None:
    """Names of the queries; None where it is not known which there are."""
    return None if workload is None else list(workload.queries)


def _read_scale(node: Node | None, reading: FileReading) -> float | None:
    cell = reading.cell(node, "`scale`", "a number")
    if node is None or cell is None:
        return None
    if isinstance(cell.value, bool) or not isinstance(cell.value, int | float):
        message = f"`scale` must be a number, not {kind_of(cell.value)}"
        reading.report(node, message, "write a number without quotes, for example 0.05")
        return None
    if not 0 < cell.value <= MAX_SCALE:
        message = f"`scale` must be above 0 and at most {MAX_SCALE}"
        reading.report(node, message, "1 is the full size")
        return None
    return float(cell.value)
