"""`impctl bench`: measure maintaining against recapture, or write tables to measure on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.app.envvars import CRIMES
from impctl.app.settings import Example, GenerateRequest
from impctl.cli.job import Job, display_of, on_workbench
from impctl.cli.options import (
    WORKLOAD_HELP,
    AsJson,
    QueryNames,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    settings_of,
)
from impctl.errors import UsageError

if TYPE_CHECKING:
    from impctl.app.reporter import Reporter
    from impctl.app.results import Outcome
    from impctl.app.workbench import Workbench

DeltaRows = Annotated[
    list[int] | None,
    typer.Option(
        "--delta-rows", metavar="N", min=1, help="Size of a change; repeat for more. Default: 1000."
    ),
]
Repeat = Annotated[int, typer.Option("--repeat", metavar="N", min=1, help="Runs per size.")]
Generate = Annotated[
    Path | None,
    typer.Option(
        "--generate",
        metavar="FOLDER",
        show_default=False,
        help="Write a table below this folder instead of measuring.",
    ),
]
ExampleName = Annotated[Example, typer.Option("--example", help="With --generate: which table.")]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table", metavar="NAME", show_default=False, help="With --generate: folder of the table."
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows", metavar="N", min=1, show_default=False, help="With --generate: rows to write."
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups", metavar="N", min=1, show_default=False, help="With --generate: groups of `a`."
    ),
]
Sorted = Annotated[bool, typer.Option("--sorted", help="With --generate: rows sorted by `a`.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="With --generate: random seed.")]
Source = Annotated[
    Path | None,
    typer.Option(
        "--source",
        metavar="FILE",
        envvar=CRIMES,
        show_default=False,
        help="With --generate: Parquet file (`--example crimes`) or folder (`tpch`) to read.",
    ),
]


def bench(
    workload: Annotated[
        Path | None, typer.Argument(metavar="WORKLOAD", help=WORKLOAD_HELP, show_default=False)
    ] = None,
    query: QueryNames = None,
    delta_rows: DeltaRows = None,
    repeat: Repeat = 5,
    generate: Generate = None,
    example: ExampleName = Example.SYNTHETIC,
    table: TableName = None,
    rows: Rows = None,
    groups: Groups = None,
    sort_rows: Sorted = False,
    seed: Seed = 1,
    source: Source = None,
    store: StoreFolder = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Measure maintaining against recapture (starts Spark).

    Changes go to copies of the tables, never to yours. With --generate, write a table instead.

    Example: impctl bench workloads/synthetic.yaml --delta-rows 10 --delta-rows 1000
    """
    display = display_of(json, quiet, verbose)
    if generate is not None and workload is None:
        request = GenerateRequest(generate, example, table, rows, groups, sort_rows, seed, source)
        return Job("bench", display, lambda reporter: _generate(request, reporter))
    if generate is not None or workload is None:
        raise UsageError(
            "Command `bench` needs either a workload file or `--generate`",
            hint="give the path of a workload file, or `--generate FOLDER`, not both",
        )

    def use_case(bench: Workbench) -> Outcome:
        from impctl.app.bench import bench as measure

        return measure(
            bench, tuple(query or ()), delta_rows=tuple(delta_rows or (1000,)), repeat=repeat
        )

    settings = settings_of(workload, store=store, spark_profile=spark_profile)
    return on_workbench("bench", display, settings, use_case)


def _generate(request: GenerateRequest, reporter: Reporter) -> Outcome:
    from impctl.app.generate import generate

    return generate(request, reporter)
