"""The tables of a suite, generated below its data folder.

Law: a table is written again only when the request differs (example, size, options, seed, source);
a marker file beside it holds the request it was written for. What has no marker is not ours: it is
never removed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict, replace

from benchmarks.figures import OptionValue
from benchmarks.large_joins.power_law import USUAL_EXPONENT
from benchmarks.layout import Order
from benchmarks.networks.shapes import Shape
from benchmarks.suite import DataSpec
from benchmarks.tables import (
    list_given,
    write_graph,
    write_layout,
    write_network,
    write_partners,
    write_social,
)
from impctl.errors import ImpctlError, Problem, StorageError, UsageError, WorkloadError
from impctl.measure.files import DEFAULT_GROUPS, DEFAULT_ROWS, generate
from impctl.service.context import Reporter
from impctl.service.output import check_output
from impctl.service.settings import Example as OwnExample
from impctl.service.settings import GenerateRequest
from impctl.store.disk import TPCH_SCRATCH, scratch_folder
from impctl.workload.yaml import shown, suggestion

_FORMAT = 1
"""Raised when equal requests no longer give equal rows."""

_LATER = ("order", "files", "exponent", "shape")
"""Fields that markers of tables without them do not have, so that these still count as written."""

_GENERATOR = "tpchgen-cli"


class Example(StrEnum):
    """The tables that a suite can have generated."""

    RUNNING = "running"
    SYNTHETIC = "synthetic"
    CRIMES = "crimes"
    TPCH = "tpch"
    LAYOUT = "layout"
    PARTNERS = "partners"
    GRAPH = "graph"
    SOCIAL = "social"
    NETWORK = "network"


class DataRequest(Struct, frozen=True):
    """A table (or a folder of them) as it is to be; None where the example has no such choice."""

    name: str
    example: str
    rows: int | None = None
    groups: int | None = None
    sort_rows: bool = False
    seed: int = 1
    source: str | None = None
    scale_factor: float | None = None
    order: str | None = None
    files: int | None = None
    exponent: float | None = None
    shape: str | None = None

    def text(self) -> str:
        """The request as the marker holds it; a source counts by its size and time too."""
        facts: dict[str, object] = {"format": _FORMAT, **asdict(self)}
        for name in _LATER:
            if facts[name] is None:
                del facts[name]
        if self.source is not None:
            facts["source_state"] = _state(Path(self.source))
        return json.dumps(facts, sort_keys=True)


def _state(source: Path) -> list[tuple[str, int, int]]:
    """Name, size and time of the file, or of every file below the folder: written again in place,
    it leaves the folder itself as it was."""
    result = sorted(file for file in source.rglob("*") if file.is_file()) or [source]
    return [
        (file.name, stat.st_size, stat.st_mtime_ns) for file in result for stat in [file.stat()]
    ]


def requests_of(
    specs: Sequence[DataSpec], *, scale: float, seed: int, source: Path | None
) -> tuple[DataRequest, ...]:
    """What to generate; one error for every wrong option, then one for a source that is missing."""
    problems: list[Problem] = []
    data_requests: list[DataRequest] = []
    for spec in specs:
        wrong = _problems(spec)
        problems += wrong
        if not wrong:
            data_requests.append(_REQUESTS[Example(spec.example)](spec, scale, seed, source))
    if problems:
        raise WorkloadError("The data of the suite cannot be generated", problems)
    return tuple(data_requests)


def make_data(requests: Sequence[DataRequest], folder: Path, reporter: Reporter) -> None:
    """Write the tables that are not there as requested."""
    check_output(folder)
    for request in requests:
        marker = folder / f".{request.name}.request.json"
        target = folder / request.name
        requested = request.text()
        if _marked(marker) == requested and target.is_dir():
            continue
        _clear(target, marker)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # First that it is ours, at the end that it is whole.
            marker.write_text("unfinished", encoding="utf-8")
            _write(request, folder, reporter)
            marker.write_text(requested, encoding="utf-8")
        except OSError as error:
            raise StorageError(
                f"The table `{request.name}` could not be written: {error.strerror}",
                hint="choose another folder with `--data`",
            ) from error


def _marked(marker: Path) -> str | None:
    try:
        return marker.read_text(encoding="utf-8")
    except OSError:
        return None


def _clear(target: Path, marker: Path) -> None:
    """Remove what an earlier request wrote; an error where something else stands there."""
    if not target.exists():
        return
    if _marked(marker) is None:
        raise UsageError(
            f"{target} already exists and was not generated by impctl",
            code="data_not_ours",
            hint="choose another folder with `--data`, or move this one",
        )
    shutil.rmtree(target)
    shutil.rmtree(target.with_name(f"{target.name}-batches"), ignore_errors=True)


_WRITERS: Mapping[str, Callable[[DataRequest, Path, Reporter], None]] = {
    Example.LAYOUT: write_layout,
    Example.PARTNERS: write_partners,
    Example.GRAPH: write_graph,
    Example.SOCIAL: write_social,
    Example.NETWORK: write_network,
}
"""Examples that impctl does not generate."""


def _write(request: DataRequest, folder: Path, reporter: Reporter) -> None:
    if request.example in _WRITERS:
        _WRITERS[request.example](request, folder, reporter)
        return
    example = OwnExample(request.example)
    source = None if request.source is None else Path(request.source)
    if example is not OwnExample.TPCH:
        requested = GenerateRequest(
            folder,
            example,
            table=request.name,
            rows=request.rows,
            groups=request.groups,
            sort_rows=request.sort_rows,
            seed=request.seed,
            source=source,
        )
        generate(requested, reporter)
        return
    target = folder / request.name
    if source is not None:
        generate(GenerateRequest(target, example, source=source, seed=request.seed), reporter)
        return
    with scratch_folder(TPCH_SCRATCH, folder) as scratch:
        generated = scratch / "made"
        generated.mkdir()
        reporter.step(f"running {_GENERATOR}")
        _run_generator(generated, request.scale_factor or 1.0)
        generate(GenerateRequest(target, example, source=generated, seed=request.seed), reporter)


def _run_generator(folder: Path, scale_factor: float) -> None:
    command = [_generator() or _GENERATOR, "parquet", "-s", f"{scale_factor:g}"]
    try:
        subprocess.run(
            [*command, "--output-dir", str(folder)], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        text = getattr(error, "stderr", None) or str(error)
        raise ImpctlError(
            f"`{_GENERATOR}` failed: {text.strip().splitlines()[-1]}",
            code="generator_failed",
            hint=f"run `{_GENERATOR}` yourself, then give its folder with `--source`",
        ) from error


def _generator() -> str | None:
    """The generator of TPC-H data, also where it lies beside this Python only."""
    beside = Path(sys.executable).parent / _GENERATOR
    return shutil.which(_GENERATOR) or (str(beside) if beside.is_file() else None)


def _synthetic(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    rows = max(round((spec.rows or DEFAULT_ROWS) * scale), spec.least)
    options = spec.options
    groups = int(_number(options, "groups", DEFAULT_GROUPS))
    if "per_group" in options:
        groups = max(1, rows // int(_number(options, "per_group", 1)))
    own_seed = int(_number(options, "seed", seed))
    return DataRequest(
        spec.name,
        spec.example,
        rows=rows,
        groups=groups,
        sort_rows=options.get("sorted") is True,
        seed=own_seed,
    )


def _layout(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    rows = max(round((spec.rows or DEFAULT_ROWS) * scale), spec.least)
    options = spec.options
    groups = int(_number(options, "groups", 0)) or None
    if "per_group" in options:
        groups = max(1, rows // int(_number(options, "per_group", 1)))
    return DataRequest(
        spec.name,
        spec.example,
        rows=rows,
        groups=groups,
        seed=int(_number(options, "seed", seed)),
        order=str(options.get("order", Order.RANDOM)),
        files=int(_number(options, "files", 0)) or None,
    )


def _partners(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    return replace(_layout(spec, scale, seed, source), order=None)


def _graph(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    layout = _layout(spec, scale, seed, source)
    exponent = _number(spec.options, "exponent", USUAL_EXPONENT)
    return replace(layout, order=None, exponent=exponent)


def _social(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    rows = max(round((spec.rows or DEFAULT_ROWS) * scale), spec.least)
    own_seed = int(_number(spec.options, "seed", seed))
    return DataRequest(spec.name, spec.example, rows=rows, seed=own_seed)


def _network(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    shape = Shape(str(spec.options.get("shape", Shape.TRANSIT_STUB)))
    result = replace(_layout(spec, scale, seed, source), order=None, shape=shape)
    if spec.rows is None:
        # As many as the shape has usually.
        result = replace(result, rows=None)
    if shape is not Shape.GIVEN:
        return result
    file = list_given(_source(spec, source))
    if file is None:
        return replace(result, shape=Shape.POWER_LAW)
    if not file.is_file():
        raise UsageError(
            f"The list of links for `{spec.name}` does not exist: {file}",
            code="source_missing",
            hint="correct `--source`, or omit it to generate a network with a power law",
            location=spec.location,
        )
    # A list is as long as it is.
    return DataRequest(spec.name, spec.example, shape=shape, source=str(file.absolute()))


def _running(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    return DataRequest(spec.name, spec.example)


def _crimes(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    file = _source(spec, source)
    if file is None or not file.is_file():
        raise UsageError(
            f"Table `{spec.name}` needs the Parquet file with the crimes data",
            code="source_missing",
            hint="give `--source FILE` or set IMPCTL_CRIMES; `workloads/crimes.yaml` names the "
            "file",
            location=spec.location,
        )
    return DataRequest(spec.name, spec.example, source=str(file.absolute()))


def _tpch(spec: DataSpec, scale: float, seed: int, source: Path | None) -> DataRequest:
    folder = _source(spec, source)
    if folder is not None and folder.is_dir():
        return DataRequest(spec.name, spec.example, seed=seed, source=str(folder.absolute()))
    if folder is not None and not folder.exists():
        # Other data than those asked for would be measured, and nobody told.
        raise UsageError(
            f"The folder to create the tables of `{spec.name}` from does not exist: {folder}",
            code="source_missing",
            hint=f"give the folder that `{_GENERATOR}` wrote with `--source`, or omit it to run "
            f"`{_GENERATOR}`",
            location=spec.location,
        )
    if _generator() is None:
        raise UsageError(
            f"The tables of `{spec.name}` need `{_GENERATOR}`, or the folder that it wrote",
            code="source_missing",
            hint=f"run `pip install {_GENERATOR}`, or give `--source FOLDER`",
            location=spec.location,
        )
    factor = _number(spec.options, "scale_factor", 1) * scale
    return DataRequest(spec.name, spec.example, seed=seed, scale_factor=factor)


def _source(spec: DataSpec, source: Path | None) -> Path | None:
    """The file's own source before the one of the command line."""
    return source if spec.source is None else Path(spec.source)


_REQUESTS: Mapping[Example, Callable[[DataSpec, float, int, Path | None], DataRequest]] = {
    Example.RUNNING: _running,
    Example.SYNTHETIC: _synthetic,
    Example.CRIMES: _crimes,
    Example.TPCH: _tpch,
    Example.LAYOUT: _layout,
    Example.PARTNERS: _partners,
    Example.GRAPH: _graph,
    Example.SOCIAL: _social,
    Example.NETWORK: _network,
}

_OPTIONS: Mapping[Example, tuple[str, ...]] = {
    Example.RUNNING: (),
    Example.SYNTHETIC: ("groups", "per_group", "seed", "sorted"),
    Example.CRIMES: (),
    Example.TPCH: ("scale_factor",),
    Example.LAYOUT: ("files", "groups", "order", "per_group", "seed"),
    Example.PARTNERS: ("per_group", "seed"),
    Example.GRAPH: ("exponent", "groups", "per_group", "seed"),
    Example.SOCIAL: ("seed",),
    Example.NETWORK: ("files", "groups", "per_group", "seed", "shape"),
}


def _problems(spec: DataSpec) -> list[Problem]:
    known = _OPTIONS[Example(spec.example)]
    result = [
        Problem(
            f"Example `{spec.example}` has no option {shown(name)}",
            spec.location,
            suggestion(name, known, "its options") or "remove it",
        )
        for name in spec.options
        if name not in known
    ]
    for name in known:
        value = spec.options.get(name)
        expected = None if value is None else _wanted(name, value)
        if expected is not None:
            text = f"Option `{name}` of `{spec.name}` must be {expected}"
            result.append(Problem(text, spec.location, f"correct `{name}`"))
    if {"groups", "per_group"} <= spec.options.keys():
        text = f"`{spec.name}` has both `groups` and `per_group`"
        result.append(Problem(text, spec.location, "remove one of them"))
    return result


def _wanted(name: str, value: OptionValue) -> str | None:
    """What an option must be; None where it is that."""
    if name == "sorted":
        return None if isinstance(value, bool) else "true or false"
    if name == "order":
        return None if value in tuple(Order) else f"one of {', '.join(Order)}"
    if name == "shape":
        return None if value in tuple(Shape) else f"one of {', '.join(Shape)}"
    kind = float if name in ("scale_factor", "exponent") else int
    if isinstance(value, bool) or not isinstance(value, int | kind):
        return "a number"
    return None if value > 0 else "above 0"


def _number(options: Mapping[str, OptionValue], name: str, default: float) -> float:
    value = options.get(name, default)
    return float(value) if isinstance(value, int | float) else default
