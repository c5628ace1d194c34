"""`impctl bench`: measure a workload, compare records, or write tables to measure on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from impctl.cli.application import left_to_shell
from impctl.cli.help import EXAMPLE_DATA, INPUT, MEASUREMENT, OUTPUT
from impctl.cli.job import Job, display_of, in_workbench
from impctl.cli.options import (
    AsJson,
    QueryNames,
    Quiet,
    SparkProfile,
    StoreFolder,
    Verbose,
    settings_of,
)
from impctl.errors import UsageError
from impctl.service.settings import CRIMES, Example, GenerateRequest, MeasureRequest, Settings
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.service.context import Reporter, Workbench
    from impctl.service.results import Outcome

DeltaRows = Annotated[
    list[int] | None,
    typer.Option(
        "--delta-rows",
        metavar="N",
        min=1,
        help="Rows per change, for a workload; can be repeated. Default: 10, 100 and 1000 rows, "
        "and 1% and 10% of the table.",
        rich_help_panel=MEASUREMENT,
    ),
]
Repeat = Annotated[
    int | None,
    typer.Option(
        "--repeat",
        metavar="N",
        min=1,
        show_default=False,
        help="Number of runs per measurement. Default: 3.",
        rich_help_panel=MEASUREMENT,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="FIGURE",
        help="Only this figure; can be repeated. Default: all figures.",
        rich_help_panel=MEASUREMENT,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="FILE",
        show_default=False,
        help="Write the record of the measurements to this file (JSON).",
        autocompletion=left_to_shell,
        rich_help_panel=OUTPUT,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE",
        show_default=False,
        help="Write a report with the figures to this file (HTML).",
        autocompletion=left_to_shell,
        rich_help_panel=OUTPUT,
    ),
]
Compare = Annotated[
    tuple[Path, Path] | None,
    typer.Option(
        "--compare",
        metavar="OLD NEW",
        show_default=False,
        help="Compare two records instead of measuring.",
        autocompletion=left_to_shell,
        rich_help_panel=INPUT,
    ),
]
Generate = Annotated[
    Path | None,
    typer.Option(
        "--generate",
        metavar="FOLDER",
        show_default=False,
        help="Write an example table to this folder instead of measuring.",
        autocompletion=left_to_shell,
        rich_help_panel=EXAMPLE_DATA,
    ),
]
ExampleName = Annotated[
    Example | None,
    typer.Option(
        "--example",
        metavar="NAME",
        show_default=False,
        help="With --generate: the table to write: orders, running, synthetic, crimes or tpch. "
        "Default: synthetic.",
        rich_help_panel=EXAMPLE_DATA,
    ),
]
TableName = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAME",
        show_default=False,
        help="With --generate: folder name of the table. Default: chosen by the example.",
        rich_help_panel=EXAMPLE_DATA,
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        "--rows",
        metavar="N",
        min=1,
        show_default=False,
        help="With --generate: number of rows. Default: chosen by the example.",
        rich_help_panel=EXAMPLE_DATA,
    ),
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        metavar="N",
        min=1,
        show_default=False,
        help="With --generate: number of distinct values of column `a`. "
        "Default: chosen by the example.",
        rich_help_panel=EXAMPLE_DATA,
    ),
]
Sorted = Annotated[
    bool,
    typer.Option(
        "--sorted", help="With --generate: sort rows by column `a`.", rich_help_panel=EXAMPLE_DATA
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed",
        metavar="N",
        show_default=False,
        help="With --generate: random seed. Default: 1.",
        rich_help_panel=EXAMPLE_DATA,
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(
        "--source",
        metavar="FILE",
        envvar=CRIMES,
        show_default=False,
        help="With --generate: source data of the table: a Parquet file (crimes) or a folder "
        "(tpch).",
        autocompletion=left_to_shell,
        rich_help_panel=EXAMPLE_DATA,
    ),
]

Word = Annotated[
    Path | None,
    typer.Argument(
        metavar="WORKLOAD",
        help="Workload file (YAML). With --report, also a record (JSON).",
        autocompletion=left_to_shell,
        rich_help_panel=INPUT,
        show_default=False,
    ),
]

_BELONGS: Mapping[str, tuple[str, ...]] = {
    "--query": ("a workload",),
    "--delta-rows": ("a workload",),
    "--repeat": ("a workload",),
    "--only": ("a workload",),
    "--out": ("a workload",),
    "--report": ("a workload", "a record"),
    "--example": ("`--generate`",),
    "--table": ("`--generate`",),
    "--rows": ("`--generate`",),
    "--groups": ("`--generate`",),
    "--sorted": ("`--generate`",),
    "--seed": ("`--generate`",),
}
"""What each option goes with; those that a variable may set are not here, and never refused."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What was given: the word, the options by name, and requests made of them."""

    word: Path | None
    options: Mapping[str, object]
    figures: MeasureRequest
    table: GenerateRequest | None
    queries: tuple[str, ...]
    delta_rows: tuple[int, ...]
    settings: Settings

    def only_with(self, what: str) -> None:
        """Refuse options that do not go with `what`."""
        for option, value in self.options.items():
            if value not in (None, False) and what not in _BELONGS[option]:
                raise UsageError(
                    f"Option `{option}` does not go with {what}",
                    hint=f"remove it; it goes with {' and '.join(_BELONGS[option])}",
                )


def bench(
    workload: Word = None,
    query: QueryNames = None,
    delta_rows: DeltaRows = None,
    repeat: Repeat = None,
    only: Only = None,
    out: Out = None,
    report: Report = None,
    compare: Compare = None,
    generate: Generate = None,
    example: ExampleName = None,
    table: TableName = None,
    rows: Rows = None,
    groups: Groups = None,
    sort_rows: Sorted = False,
    seed: Seed = None,
    source: Source = None,
    store: StoreFolder = None,
    spark_profile: SparkProfile = None,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Measure what sketches of a workload cost and save (starts Spark).

    The figures are changes, skipping, capture and ways. impctl measures on copies of your tables.
    With --generate, it writes an example table instead. With --compare, it shows the differences
    between two records.

    Example: impctl bench workload.yaml --only changes --out changes.json
    """
    figures = MeasureRequest(tuple(only or ()), repeat, out, report)
    kind, first = example or Example.SYNTHETIC, 1 if seed is None else seed
    request = None
    if generate is not None:
        request = GenerateRequest(generate, kind, table=table, rows=rows, groups=groups)
        request = replace(request, sort_rows=sort_rows, seed=first, source=source)
    for_measuring = (query, delta_rows, repeat, only, out, report)
    for_generating = (example, table, rows, groups, sort_rows, seed)
    options = dict(zip(_BELONGS, for_measuring + for_generating, strict=True))
    word = Path("") if workload is None else workload
    settings = settings_of(word, store=store, spark_profile=spark_profile)
    sizes = tuple(delta_rows or ())
    asked = _Asked(workload, options, figures, request, tuple(query or ()), sizes, settings)
    work = _work(asked, compare)
    return Job("bench", display_of(json, quiet, verbose), work, is_long=True)


def _work(asked: _Asked, records: tuple[Path, Path] | None) -> Callable[[Reporter], Outcome]:
    """The one thing that is asked for."""
    wishes = [asked.word, asked.table, records]
    if sum(wish is not None for wish in wishes) != 1:
        raise UsageError(
            "Command `bench` needs either a workload file, `--generate` or `--compare`",
            hint="give one of them",
        )
    if records is not None:
        asked.only_with("`--compare`")
        return partial(_compare, *records)
    if asked.table is not None:
        asked.only_with("`--generate`")
        return partial(_generate, asked.table)
    return partial(_measure, asked)


def _measure(asked: _Asked, reporter: Reporter) -> Outcome:
    """The page of a record, or a workload: as the word turns out to be."""
    word = asked.settings.workload
    if word.suffix == ".json":
        return _report(asked, word, reporter)

    def use_case(desk: Workbench) -> Outcome:
        asked.only_with("a workload")
        reporter.step(f"measuring {word}")
        from impctl.measure.run import run_workload

        return run_workload(desk, asked.figures, asked.queries, delta_rows=asked.delta_rows)

    return in_workbench(asked.settings, use_case, reporter)


def _report(asked: _Asked, record: Path, reporter: Reporter) -> Outcome:
    from impctl.measure.keep import report_file

    asked.only_with("a record")
    if asked.figures.report is None:
        raise UsageError(
            f"File `{record}` is a record, which is not measured again",
            hint="give `--report FILE` for its page, or `--compare OLD NEW`",
        )
    return report_file(record, asked.figures.report, reporter)


def _compare(old: Path, new: Path, reporter: Reporter) -> Outcome:
    from impctl.measure.keep import compare_files

    return compare_files(old, new, reporter)


def _generate(request: GenerateRequest, reporter: Reporter) -> Outcome:
    from impctl.measure.generate import generate

    return generate(request, reporter)
