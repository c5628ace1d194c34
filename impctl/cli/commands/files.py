"""Commands that write files and tables: init, apply, cluster, gc, bench, completion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from impctl.cli.application import (
    COMPLETION_VARIABLE,
    EXAMPLE_DATA,
    INPUT,
    LIMITS,
    MEASUREMENT,
    OUTPUT,
    SAFETY,
    complete_path,
    complete_update,
)
from impctl.cli.job import Display, Job, display_of, in_context, on_context
from impctl.cli.options import (
    AsJson,
    DryRun,
    LockTimeout,
    QueryNames,
    Quiet,
    ReportFile,
    SparkProfile,
    StoreFolder,
    Verbose,
    WorkloadFile,
    file_option,
    option,
    settings_of,
)
from impctl.errors import UsageError
from impctl.service.settings import (
    CRIMES,
    DEFAULT_FILE,
    Example,
    GenerateRequest,
    InitRequest,
    MeasureRequest,
    Settings,
)

if TYPE_CHECKING:
    from impctl.service.context import Context, Reporter
    from impctl.service.results import Outcome


def init(
    tables: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TABLE",
            help="Delta tables: folders or URIs. With --demo: the folder to create.",
            rich_help_panel=INPUT,
            autocompletion=complete_path,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        file_option("--out FILE", OUTPUT, "File to write. Default: impctl.yaml."),
    ] = None,
    demo: Annotated[
        bool,
        option("--demo", INPUT, "Create a small table and a workload file to try out."),
    ] = False,
    force: Annotated[bool, option("--force", SAFETY, "Overwrite an existing file.")] = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Create a workload file for Delta tables, or a demo.

    Example: impctl init --demo
    """
    request = _request(tables or [], out, demo, force)

    def work(reporter: Reporter) -> Outcome:
        from impctl.service.init import init

        return init(request, reporter)

    return Job("init", display_of(json, quiet, verbose), work)


def _request(tables: list[str], out: Path | None, demo: bool, force: bool) -> InitRequest:
    if demo:
        if len(tables) > 1 or out is not None:
            raise UsageError(
                "`--demo` takes one folder and no `--out`", hint="give `impctl init --demo FOLDER`"
            )
        folder = Path(tables[0]) if tables else Path("impctl-demo")
        return InitRequest(demo=folder, force=force)
    if not tables:
        raise UsageError(
            "Command `init` needs the path of a Delta table",
            hint="give one or more, or `--demo` for a table to try things on",
        )
    return InitRequest(tuple(tables), out, None, force)


def apply(
    workload: WorkloadFile = DEFAULT_FILE,
    updates: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="UPDATE",
            help="Updates to commit, in this order.",
            autocompletion=complete_update,
            rich_help_panel=INPUT,
        ),
    ] = None,
    all_updates: Annotated[
        bool,
        option("--all", INPUT, "Commit all updates in the file, in order."),
    ] = False,
    again: Annotated[
        bool,
        option("--again", INPUT, "Commit a batch even if its table already contains it."),
    ] = False,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Commit update batches from the workload file to its tables.

    Each batch creates a new version of its table. No other command changes rows of your tables. A
    batch is skipped if its table already contains it, with the same name and content.

    Example: impctl apply workloads/running-example.yaml s8
    """
    names = tuple(updates or ())
    if all_updates == bool(names):
        raise UsageError(
            "Command `apply` needs the names of updates, or `--all`",
            hint="name updates after the workload file, or give `--all`, not both",
        )

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.apply import apply

        return apply(ctx, names, all_updates=all_updates, again=again)

    settings = settings_of(workload, dry_run=dry_run)
    return on_context("apply", display_of(json, quiet, verbose), settings, use_case)


def cluster(
    workload: WorkloadFile = DEFAULT_FILE,
    tables: Annotated[
        list[str] | None,
        option(
            "--table NAME",
            INPUT,
            "Cluster this table, even without savings; can be repeated. "
            "Default: every table with savings.",
        ),
    ] = None,
    by: Annotated[
        list[str] | None,
        option(
            "--by ATTRIBUTE",
            INPUT,
            "Sort files by this column; repeat for a Z-order. Default: the sketched columns.",
        ),
    ] = None,
    yes: Annotated[
        bool,
        option(
            "--yes", SAFETY, "Continue even if clustering makes more sketches worse than better."
        ),
    ] = False,
    store: StoreFolder = None,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Re-cluster tables so that sketches skip more files.

    Files are sorted by the sketched attribute, or in Z-order by several. Rows do not change, and
    sketches remain valid. Each table gets a new version, and its old files remain until a VACUUM.
    Estimates are based on the stored sketches, so run `capture` first.

    Example: impctl cluster workloads/running-example.yaml --dry-run
    """

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.cluster import cluster

        return cluster(ctx, tuple(tables or ()), tuple(by or ()), may_lose=yes)

    settings = settings_of(workload, store=store, dry_run=dry_run)
    return on_context("cluster", display_of(json, quiet, verbose), settings, use_case)


Keep = Annotated[
    int | None,
    option(
        "--keep N",
        LIMITS,
        "Number of latest sketch versions to keep for each query. Default: 32.",
        min=1,
    ),
]


def gc(
    workload: WorkloadFile = DEFAULT_FILE,
    keep: Keep = None,
    store: StoreFolder = None,
    lock_timeout: LockTimeout = None,
    dry_run: DryRun = False,
    json: AsJson = False,
    quiet: Quiet = False,
    verbose: Verbose = 0,
) -> Job:
    """Delete old sketch versions and files left by interrupted runs.

    Also deletes sets of ranges that no sketch uses, state files that no run uses, and scratch
    folders beside tables.

    Example: impctl gc workloads/running-example.yaml --keep 8 --dry-run
    """

    def use_case(ctx: Context) -> Outcome:
        from impctl.service.gc import gc

        return gc(ctx, keep)

    settings = settings_of(workload, store=store, lock_timeout=lock_timeout, dry_run=dry_run)
    return on_context("gc", display_of(json, quiet, verbose), settings, use_case)


DeltaRows = Annotated[
    list[int] | None,
    option(
        "--delta-rows N",
        MEASUREMENT,
        "Rows per change, for a workload; can be repeated. Default: 10, 100 and 1000 rows, "
        "and 1% and 10% of the table.",
        min=1,
    ),
]
Repeat = Annotated[
    int | None,
    option("--repeat N", MEASUREMENT, "Number of runs per measurement. Default: 3.", min=1),
]
Only = Annotated[
    list[str] | None,
    option(
        "--only FIGURE", MEASUREMENT, "Only this figure; can be repeated. Default: all figures."
    ),
]
Out = Annotated[
    Path | None,
    file_option("--out FILE", OUTPUT, "Write the record of the measurements to this file (JSON)."),
]
Compare = Annotated[
    tuple[Path, Path] | None,
    file_option("--compare OLD NEW", INPUT, "Compare two records instead of measuring."),
]
Generate = Annotated[
    Path | None,
    file_option(
        "--generate FOLDER",
        EXAMPLE_DATA,
        "Write an example table to this folder instead of measuring.",
    ),
]
ExampleName = Annotated[
    Example | None,
    option(
        "--example NAME",
        EXAMPLE_DATA,
        "With --generate: the table to write: orders, running, synthetic, crimes or tpch. "
        "Default: synthetic.",
    ),
]
TableName = Annotated[
    str | None,
    option(
        "--table NAME",
        EXAMPLE_DATA,
        "With --generate: folder name of the table. Default: chosen by the example.",
    ),
]
Rows = Annotated[
    int | None,
    option(
        "--rows N",
        EXAMPLE_DATA,
        "With --generate: number of rows. Default: chosen by the example.",
        min=1,
    ),
]
Groups = Annotated[
    int | None,
    option(
        "--groups N",
        EXAMPLE_DATA,
        "With --generate: number of distinct values of column `a`. Default: chosen by the example.",
        min=1,
    ),
]
Sorted = Annotated[
    bool,
    option("--sorted", EXAMPLE_DATA, "With --generate: sort rows by column `a`."),
]
Seed = Annotated[
    int | None,
    option("--seed N", EXAMPLE_DATA, "With --generate: random seed. Default: 1."),
]
Source = Annotated[
    Path | None,
    file_option(
        "--source FILE",
        EXAMPLE_DATA,
        "With --generate: source data of the table: a Parquet file (crimes) or a folder (tpch).",
        envvar=CRIMES,
    ),
]

Word = Annotated[
    Path | None,
    typer.Argument(
        metavar="WORKLOAD",
        help="Workload file (YAML). With --report, also a record (JSON).",
        autocompletion=complete_path,
        rich_help_panel=INPUT,
    ),
]

_BELONGS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("--query", "--delta-rows", "--repeat", "--only", "--out"), ("a workload",)),
    "--report": ("a workload", "a record"),
    **dict.fromkeys(
        ("--example", "--table", "--rows", "--groups", "--sorted", "--seed"), ("`--generate`",)
    ),
}
"""What each option goes with. Options that a variable may set are not listed and never refused."""


def bench(
    workload: Word = None,
    query: QueryNames = None,
    delta_rows: DeltaRows = None,
    repeat: Repeat = None,
    only: Only = None,
    out: Out = None,
    report: ReportFile = None,
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
    if [workload, generate, compare].count(None) != 2:
        raise UsageError(
            "Command `bench` needs either a workload file, `--generate` or `--compare`",
            hint="give one of them",
        )
    for_measuring = (query, delta_rows, repeat, only, out, report)
    for_generating = (example, table, rows, groups, sort_rows, seed)
    options = dict(zip(_BELONGS, for_measuring + for_generating, strict=True))
    work: Callable[[Reporter], Outcome]
    if compare is not None:
        _check_options(options, "`--compare`")
        work = partial(_compare, *compare)
    elif generate is not None:
        _check_options(options, "`--generate`")
        kind, first = example or Example.SYNTHETIC, 1 if seed is None else seed
        request = GenerateRequest(generate, kind, table=table, rows=rows, groups=groups)
        request = replace(request, sort_rows=sort_rows, seed=first, source=source)
        work = partial(_generate, request)
    else:
        assert workload is not None
        settings = settings_of(workload, store=store, spark_profile=spark_profile)
        figures = MeasureRequest(tuple(only or ()), repeat, out, report)
        work = partial(_measure, settings, figures, options)
    return Job("bench", display_of(json, quiet, verbose), work, is_long=True)


def _check_options(options: Mapping[str, object], what: str) -> None:
    """Refuse options that do not go with `what`."""
    for name, value in options.items():
        if value not in (None, False) and what not in _BELONGS[name]:
            raise UsageError(
                f"Option `{name}` does not go with {what}",
                hint=f"remove it; it goes with {' and '.join(_BELONGS[name])}",
            )


def _measure(
    settings: Settings, figures: MeasureRequest, options: Mapping[str, Any], reporter: Reporter
) -> Outcome:
    """Measure a workload, or render the report of a record, by the suffix of the file."""
    if settings.workload.suffix == ".json":
        return _report(settings.workload, figures.report, options, reporter)

    def use_case(ctx: Context) -> Outcome:
        _check_options(options, "a workload")
        reporter.step(f"measuring {settings.workload}")
        from impctl.measure.run import run_workload

        queries, sizes = options["--query"] or (), options["--delta-rows"] or ()
        return run_workload(ctx, figures, tuple(queries), delta_rows=tuple(sizes))

    return in_context(settings, use_case, reporter)


def _report(
    record: Path, target: Path | None, options: Mapping[str, object], reporter: Reporter
) -> Outcome:
    from impctl.measure.record_files import report_file

    _check_options(options, "a record")
    if target is None:
        raise UsageError(
            f"File `{record}` is a record, which is not measured again",
            hint="give `--report FILE` for its page, or `--compare OLD NEW`",
        )
    return report_file(record, target, reporter)


def _compare(old: Path, new: Path, reporter: Reporter) -> Outcome:
    from impctl.measure.record_files import compare_files

    return compare_files(old, new, reporter)


def _generate(request: GenerateRequest, reporter: Reporter) -> Outcome:
    from impctl.measure.generate import generate

    return generate(request, reporter)


Shell = StrEnum("Shell", ("bash", "zsh", "fish"))


def completion(
    shell: Annotated[
        Shell,
        typer.Argument(help="Shell to complete for: bash, zsh or fish.", rich_help_panel=INPUT),
    ],
) -> Job:
    """Print the shell completion script.

    Load it when the shell starts. For bash, add this line to ~/.bashrc: eval "$(impctl completion
    bash)".

    Example: impctl completion bash
    """

    def work(reporter: Reporter) -> str:
        # Typer gives the scripts no public name.
        from typer.completion import get_completion_script  # type: ignore[attr-defined]  # as above

        return get_completion_script(
            prog_name="impctl", complete_var=COMPLETION_VARIABLE, shell=shell.value
        )

    return Job("completion", Display(), work)
