"""Use case: look at everything impctl rests on, and say for each thing what is wrong and the fix.

Law: writes nothing and starts no JVM unless asked to; one thing that is wrong hides no other.
Problems end the run with the exit code of the gravest (`app.results.ending.GRAVITY`), warnings with
0.
Out of scope: mending anything.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import timedelta

from impctl.app.examining.extras import extra_findings
from impctl.app.examining.sharing import sharing_findings
from impctl.app.examining.skipping import skipping_findings
from impctl.app.examining.spark_reading import spark_findings
from impctl.app.examining.store import store_findings
from impctl.app.examining.surroundings import delta_jar, software, try_spark
from impctl.app.examining.tables import table_findings
from impctl.app.examining.tree_work import tree_findings
from impctl.app.results.ending import GRAVITY
from impctl.app.results.findings import Finding, problems_error
from impctl.app.results.results import Failure, Outcome
from impctl.app.workbench.reporter import Reporter
from impctl.app.workbench.sessions import master_of
from impctl.app.workbench.settings import DoctorRequest
from impctl.app.workbench.workbench import Workbench, open_workbench
from impctl.errors import ImpctlError, UsageError
from impctl.store.records import StoredQuery
from impctl.tables.log import duration_of


def doctor(request: DoctorRequest, reporter: Reporter) -> Outcome:
    """All findings; with a workload, those about its tables and store as well."""
    every = None if request.every is None else schedule_of(request.every)
    reporter.step("checking software")
    findings = list(software(os.environ))
    failures: list[Failure] = []
    if request.settings is None:
        findings.append(delta_jar(None))
        if request.spark:
            findings.append(try_spark(master_of(None), {}, reporter.spark_log)[0])
    else:
        try:
            with open_workbench(request.settings, reporter) as desk:
                findings += _of_workload(
                    desk, every, with_spark=request.spark, with_state=request.state
                )
        except ImpctlError as error:
            # A workload file that is wrong hides nothing found before.
            failures.append(Failure(None, error))
    sum_of_problems = problems_error(findings, GRAVITY)
    if sum_of_problems is not None:
        failures.append(Failure(None, sum_of_problems))
    return Outcome(tuple(findings), (), tuple(failures))


def _of_workload(
    desk: Workbench, every: timedelta | None, *, with_spark: bool, with_state: bool
) -> Iterator[Finding]:
    spark = desk.spark_spec
    yield from extra_findings(desk.workload.queries)
    yield delta_jar(spark)
    if with_spark:
        desk.reporter.step("starting Spark")
        result, read_one = try_spark(master_of(spark.master), spark.conf, desk.reporter.spark_log)
        yield result
        if read_one is not None:
            desk.reporter.step("reading a file of each table with Spark")
            yield from spark_findings(desk, read_one)
    desk.reporter.step("checking tables")
    stored = _stored(desk)
    yield from table_findings(desk, stored, every)
    desk.reporter.step("checking the store")
    yield from store_findings(desk, with_state=with_state)
    yield from sharing_findings(desk)
    yield from skipping_findings(desk, stored)
    yield from tree_findings(stored)


def _stored(desk: Workbench) -> list[StoredQuery]:
    """The sketches that can be read; what cannot is found with the store."""
    result = []
    for name in desk.workload.queries:
        try:
            store = desk.reading_store()
            stored = None if store is None else store.load(name)
        except ImpctlError:
            continue
        if stored is not None:
            result.append(stored)
    return result


def schedule_of(text: str) -> timedelta:
    """The time between two runs, as `1d`, `90m` or `2 hours`; UsageError for anything else."""
    every = duration_of(text)
    if every is None or not every:
        raise UsageError(
            f"`{text}` is not an interval between two runs",
            hint="write it as `15m`, `6h`, `1d` or `2 weeks`",
        )
    return every
