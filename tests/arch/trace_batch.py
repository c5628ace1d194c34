"""Trace one maintained batch and print how much code is on its path.

    python -m tests.arch.trace_batch [--json] [--files]

The batch changes one table; one query has a SUM with HAVING over it. Two runs are traced: `memory`,
the second `maintain` of a process that uses the Python API, so that the state is in memory, and
`fresh`, an `impctl maintain` in a new process.

Functions of `impctl` are counted in the main thread, from the call of the use case to its return.
A comprehension, generator expression or lambda belongs to the enclosing function, as in newer
Pythons. Code that runs during an import is not counted.

calls      calls of a function; a generator is called each time it resumes
functions  distinct functions called
files      distinct files with such functions
switches   calls that lead into another file than the previous call
frames     functions on the stack from the use case to the deepest step of an operator, inclusive
types      value types on that stack: classes of frozen records that one of its functions takes or
           returns, passes to a function it calls or gets from it, directly or first in a sequence
records    the same for all functions called, on the stack or not
modules    modules of `impctl` that are loaded at the end, without packages
idle       those of `modules` that are not among `files`
packages   packages of `impctl` that are loaded at the end
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

USE_CASE = ("impctl.service.maintain", "maintain")
"""Module and function through which a batch is traced, from its call to its return."""
STEP = ("impctl.engine", "step")
"""Package and method that processes a batch in an operator."""

_ROOT = Path(__file__).parents[2]
_WORKLOAD = """\
version: 1
tables: {sales: {path: sales}}
partitions: {sales: {price: {boundaries: [601, 1001, 1501]}}}
queries:
  top:
    sql: >-
      SELECT brand, SUM(price * sold) AS revenue FROM sales
      GROUP BY brand HAVING SUM(price * sold) > 50000
    sketch: {sales: price}
"""


class Trace:
    """A profile function and its counts."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Calls by file, in the order of the first one."""
        self.functions: set[CodeType] = set()
        self.switches = 0
        self.records: dict[str, None] = {}
        self._start: FrameType | None = None
        self._imports = 0
        self._file = ""
        self._stack: list[dict[str, None]] = []
        """The value types that each running function handled."""
        self._spine: list[dict[str, None]] = []
        """The same for the stack at the deepest step of an operator."""

    def __call__(self, frame: FrameType, event: str, value: object) -> None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        if event not in ("call", "return") or module.split(".")[0] != "impctl":
            return
        if self._start is None and (module, code.co_name) == USE_CASE:
            self._start = frame
        if self._start is None or not code.co_filename.startswith(str(_ROOT)):
            return
        if not code.co_flags & inspect.CO_OPTIMIZED:  # the body of a module or class
            self._imports += 1 if event == "call" else -1
        elif self._imports == 0 and not code.co_name.startswith("<"):
            if event == "call":
                self._called(frame)
                if code.co_name == STEP[1] and module.startswith(STEP[0]):
                    self._spine = max(self._spine, list(self._stack), key=len)
            else:
                self._handle(value)
                self._stack.pop()
        if event == "return" and frame is self._start:
            sys.setprofile(None)

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        file = str(Path(code.co_filename).relative_to(_ROOT))
        self.calls[file] += 1
        self.functions.add(code)
        self.switches += file != self._file
        self._file = file
        self._stack.append({})
        for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
            self._handle(frame.f_locals.get(name))

    def _handle(self, value: object) -> None:
        """Record a value that a function passes to its caller, or the other way."""
        if type(value) in (tuple, list) and value:
            value = value[0]  # type: ignore[index]
        if _is_record(value):
            for types in (self.records, *self._stack[-2:]):
                types[type(value).__name__] = None

    def report(self) -> dict[str, Any]:
        if not self._spine:
            raise LookupError("no batch was traced: USE_CASE or STEP names what is not there")
        loaded = [module for name, module in sys.modules.items() if name.split(".")[0] == "impctl"]
        modules = [str(module.__file__) for module in loaded if not hasattr(module, "__path__")]
        used = {str(_ROOT / file) for file in self.calls}
        return {
            "calls": self.calls.total(),
            "functions": len(self.functions),
            "files": len(self.calls),
            "switches": self.switches,
            "frames": len(self._spine),
            "types": list({name: None for types in self._spine for name in types}),
            "records": list(self.records),
            "modules": len(modules),
            "idle": len(set(modules) - used),
            "packages": len(loaded) - len(modules),
            "calls_by_file": dict(self.calls),
        }


def _is_record(value: object) -> bool:
    """Whether it is a frozen struct or a named tuple of `impctl`."""
    kind = type(value)
    if kind.__module__.split(".")[0] != "impctl":
        return False
    config = getattr(kind, "__struct_config__", None)
    return isinstance(value, tuple) or getattr(config, "frozen", False)


def trace_in_memory(folder: Path) -> dict[str, Any]:
    """Trace the second batch of this process."""
    import impctl

    trace = Trace()
    with impctl.open(make_workload(folder)) as opened:
        opened.capture()
        add_batch(folder)
        opened.maintain()
        add_batch(folder)
        sys.setprofile(trace)
        opened.maintain()
        sys.setprofile(None)
    return trace.report()


def trace_fresh(folder: Path) -> dict[str, Any]:
    """Trace a batch of a new process."""
    import impctl

    file = str(make_workload(folder))
    with impctl.open(file) as opened:
        opened.capture()
    add_batch(folder)
    environment = {name: value for name, value in os.environ.items() if "IMPCTL" not in name}
    words = [sys.executable, "-m", __spec__.name, "--child", file]
    completed = subprocess.run(
        words, check=True, capture_output=True, text=True, cwd=_ROOT, env=environment
    )
    report: dict[str, Any] = json.loads(completed.stderr)
    return report


def _maintain_traced(file: str) -> None:
    """Run `impctl maintain FILE`, and write the report to stderr."""
    trace = Trace()
    sys.argv = ["impctl", "maintain", file]
    sys.setprofile(trace)
    try:
        runpy.run_module("impctl", run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    sys.stderr.write(json.dumps(trace.report()))


def make_workload(folder: Path) -> Path:
    """Create the workload file and its table."""
    _append(folder, range(200))
    file = folder / "workload.yaml"
    file.write_text(_WORKLOAD)
    return file


def add_batch(folder: Path) -> None:
    """Commit ten new rows, then delete two."""
    from deltalake import DeltaTable

    _append(folder, range(10))
    DeltaTable(str(folder / "sales")).delete("brand = 'b3' AND sold = 3")


def _append(folder: Path, numbers: range) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    rows = {
        "brand": [f"b{number % 7}" for number in numbers],
        "price": [number % 7 * 300 + number % 50 for number in numbers],
        "sold": [number % 4 for number in numbers],
    }
    feed = {"delta.enableChangeDataFeed": "true"}
    write_deltalake(str(folder / "sales"), pa.table(rows), mode="append", configuration=feed)


def as_text(reports: dict[str, dict[str, Any]], *, with_files: bool) -> str:
    lines = ["".join(name.rjust(10) for name in ("", *reports))]
    first = next(iter(reports.values()))
    for name in (name for name in first if name != "calls_by_file"):
        values = [report[name] for report in reports.values()]
        counts = [value if isinstance(value, int) else len(value) for value in values]
        lines.append(name.ljust(10) + "".join(f"{count:10,}" for count in counts))
    for run, report in reports.items():
        lines += ["", f"types ({run}): {', '.join(report['types'])}"]
        if with_files:
            lines += ["", f"files ({run}), in the order of their first call, with their calls:"]
            lines += [f"{count:8,}  {file}" for file, count in report["calls_by_file"].items()]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog=f"python -m {__spec__.name}")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--files", action="store_true", help="list the files with their calls")
    parser.add_argument("--child", metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        _maintain_traced(options.child)
        return
    reports = {}
    for name, trace in (("memory", trace_in_memory), ("fresh", trace_fresh)):
        with tempfile.TemporaryDirectory() as folder:
            reports[name] = trace(Path(folder))
    text = json.dumps(reports) if options.json else as_text(reports, with_files=options.files)
    print(text)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
