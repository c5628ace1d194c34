"""Spark that captures both sketches anew, against a whole durable `maintain` of 1,000 rows.

`python -m benchmarks.rivals.recapture_in_spark [ROWS] [PARTNERS]`, 1,000,000 rows a table and 2,000
partners without; needs Java. Spark runs in this process on all cores and makes the sketches alone
by the fastest pass that impctl has for that, which `verify` and `bench` take as well. It is warm:
the session is up, and the pass that counts is the second one in it; the first is said too. impctl's
step is a call of `maintain` on an open workload with `join: tree`, from the tables' logs to the
synced commit, and the same as `impctl maintain` from starting Python on.
Ends with 1 where Java is missing or a sketch differs. Most of its time is Spark's.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

import impctl
from benchmarks.rivals.on_disk import QUERY, OnDisk, Sketches, Wall, clocked, maintained
from benchmarks.rivals.pairs import say
from impctl.errors import ImpctlError
from impctl.measure.scratch import MeasuredQuery
from impctl.service.context import open_context
from impctl.service.prepare import prepare
from impctl.service.settings import Settings
from impctl.sketch.sketch import RangeSet
from impctl.spark.session import find_java
from impctl.types import AccessId

MISSING = "Spark has no Java to run on: install one, version 17 or newer"
GOAL = 1_000.0
_CHANGED, _WARM, _TURNS, _RECAPTURES = 1_000, 2, 10, 1
_PROFILE = Path(__file__).parents[2] / "configs" / "spark-local.yaml"


def main(arguments: list[str]) -> int:
    try:
        find_java(os.environ)
    except ImpctlError:
        say(MISSING)
        return 1
    rows, partners = [int(text) for text in arguments] or (1_000_000, 2_000)
    with tempfile.TemporaryDirectory() as folder:
        return 0 if _compared(OnDisk.written(Path(folder), rows, partners)) else 1


def _compared(tables: OnDisk) -> bool:
    name = f"{tables.rows:,} rows a table, {tables.partners:,} partners"
    steps: list[Wall] = []
    with impctl.open(tables.workload) as opened:
        opened.capture()
        for _ in range(_WARM + _TURNS):
            tables.change(_CHANGED)
            maintained(opened, steps)
            if tables.sketches() != tables.stored():
                say(f"{name}: the maintained sketches differ")
                return False
    process = tables.afresh(_CHANGED)
    step = Wall.middle(steps[_WARM:])
    say(f"{name}: maintain {step.text()}; fresh process {process.text()}")
    times: list[Wall] = []
    with open_context(Settings(tables.workload, spark_profile=_PROFILE)) as ctx:
        follower = MeasuredQuery(ctx, prepare(ctx, ctx.workload.queries[QUERY]))
        for _ in range(1 + _RECAPTURES):
            before = _processor_ms(ctx.spark())
            with clocked(times):
                recapture = follower.recapture()
            java_ms = _processor_ms(ctx.spark()) - before
            # What is clocked is this process alone, without the one that Spark runs in.
            times[-1] = replace(times[-1], cpu_ms=times[-1].cpu_ms + java_ms)
            say(f"{name}: Spark's capture {times[-1].text()}")
            if not _ranges(recapture) == tables.sketches() == tables.stored():
                say(f"{name}: Spark's sketches differ")
                return False
        say(f"{name}: Spark {ctx.spark().version}, {ctx.spark().sparkContext.master}")
    warm = Wall.middle(times[1:])
    missed = "" if warm.wall_ms >= GOAL * step.wall_ms else f"; the goal of {GOAL:,.0f} is missed"
    say(f"{name}: Spark's second capture is {warm.times(step)} the step's{missed}")
    say(f"{name}: and {warm.times(process)} the fresh process's")
    return True


def _processor_ms(spark: Any) -> float:
    """What all threads of Spark's own process took so far."""
    process = spark.sparkContext._jvm.java.lang.ProcessHandle.current()
    return float(process.info().totalCpuDuration().get().toMillis())


def _ranges(result: Mapping[AccessId, RangeSet]) -> Sketches:
    return {access.split("#")[0]: frozenset(ranges) for access, ranges in result.items()}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
