"""The section `data` of a suite file: tables to generate.

Law: sizes are those at scale 1 and nothing is generated here; a `source` is relative to the file.
Out of scope: which options an example knows (`app.measuring.data`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from yaml.nodes import Node, SequenceNode

from impctl.workload.names import is_name, refuse_name
from impctl.workload.paths import read_path
from impctl.workload.reading import Entry, FileReading, inside
from impctl.workload.scalars import kind_of
from impctl.workload.suite_models import DataSpec, OptionValue

MAX_ROWS = 2**31 - 1

_OWN = ("example", "rows", "least", "source")


def read_data(
    node: Node | None, examples: Sequence[str], base: Path, reading: FileReading
) -> Mapping[str, DataSpec]:
    """The tables to generate that could be read, in file order."""
    found: dict[str, DataSpec] = {}
    for name, entry in (reading.entries(node, "`data`") or {}).items():
        if not is_name(name):
            refuse_name(entry.key, name, "generated data", reading)
        spec = _read_spec(name, entry, examples, base, reading)
        if spec is not None:
            found[name] = spec
    return found


def _read_spec(
    name: str, entry: Entry, examples: Sequence[str], base: Path, reading: FileReading
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
        source = read_path(nodes["source"], inside(path, "source"), base, reading)
    options = {key: inner for key, inner in entries.items() if key not in _OWN}
    values = read_options(options, path, reading)
    if example is None:
        return None
    least = 1 if least is None else least
    return DataSpec(name, example, rows, least, values, source, reading.at(entry.key))


def read_options(
    entries: Mapping[str, Entry], path: str, reading: FileReading
) -> Mapping[str, OptionValue]:
    """Options: each a single value or a list of them."""
    found: dict[str, OptionValue] = {}
    for name, entry in entries.items():
        value = _read_option(entry.value, inside(path, name), reading)
        if value is not None:
            found[name] = value
    return found


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
        message = f"{path} must be a number, text, or true or false, not {kind_of(cell.value)}"
        reading.report(node, message, "put quotes around it to make it text")
        return None
    return cell.value
