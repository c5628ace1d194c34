"""The options that commands share, and how a command declares which of them it takes.

Law: an unset option is None; an option overrides its variable, and the same text means the same in
an option and in a file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import EllipsisType
from typing import Any, get_type_hints

import typer
from msgspec import Struct

from impctl.cli.job import Invocation, Job, display_of
from impctl.service.settings import DEFAULT_FILE, ENVVARS, Policy, names_in, seconds_in

_VARIABLES = {entry.flag: entry.name for entry in ENVVARS if entry.flag is not None}


class Group(str):
    """A group of options in `--help`."""

    __slots__ = ()

    def option(self, declaration: str, **others: Any) -> Any:
        """Declare an option with its help, such as `--store FOLDER: Folder for sketches`; a flag
        has no value name. Unless given, the default of a flag is False, else None, and the variable
        is that of `ENVVARS`. The shell completes paths of files and folders."""
        head, _, text = declaration.partition(": ")
        names = [word for word in head.split() if word.startswith("-")]
        metavar = head.removeprefix(" ".join(names)).strip() or None
        others = {
            "default": False if metavar is None else None,
            "envvar": _VARIABLES.get(names[0]),
        } | others
        if metavar in ("FILE", "FOLDER", "OLD NEW"):
            others["autocompletion"] = complete_path
        default = others.pop("default")
        return typer.Option(
            default, *names, metavar=metavar, help=text, rich_help_panel=self, **others
        )

    def common(self, kind: Any, declaration: str, **others: Any) -> tuple[Any, Any]:
        """Declare an option that commands share, with the type of its value."""
        return kind, self.option(declaration, **others)


INPUT = Group("Input")
MAINTENANCE = Group("Sketch and maintenance")
SCHEDULE = Group("Schedule")
MEASUREMENT = Group("Measurement")
EXAMPLE_DATA = Group("Example data")
LIMITS = Group("Limits")
STORE_AND_SPARK = Group("Store and Spark")
SAFETY = Group("Safety and exit codes")
OUTPUT = Group("Output")
OPTION_GROUPS = (
    *(INPUT, MAINTENANCE, SCHEDULE, MEASUREMENT, EXAMPLE_DATA, LIMITS),
    *(STORE_AND_SPARK, SAFETY, OUTPUT),
)
"""In the order of `--help`; groups without options are not shown."""

# Completion of names from the workload file on the command line. Law: imports only when a shell
# asks, and never fails, since all output appears in the prompt.

COMPLETION_VARIABLE = "_IMPCTL_COMPLETE"
"""Set by the completion scripts of shells. The parser then prints words and runs nothing."""


def complete_query(context: typer.Context, incomplete: str) -> list[str]:
    """Complete names of queries that are not given yet."""
    return _completions("queries", context, ("query", "one_query"), incomplete)


def complete_update(context: typer.Context, incomplete: str) -> list[str]:
    """Complete names of updates that are not given yet."""
    return _completions("updates", context, ("updates",), incomplete)


def complete_path(incomplete: str) -> list[str]:
    """Return nothing: then the shell completes paths itself."""
    return []


def _completions(
    section: str, context: typer.Context, parameters: tuple[str, ...], incomplete: str
) -> list[str]:
    # The parser reads no argument while an option lacks its value, so a file among the arguments
    # precedes the parameter, which may be the default.
    words = (*context.args, context.params.get("workload"))
    paths = (Path(str(word)).expanduser() for word in words if word is not None)
    file = next((path for path in paths if path.is_file()), None)
    if file is None:
        return []
    used = {name for parameter in parameters for name in context.params.get(parameter) or ()}
    return [
        name for name in names_in(file, section) if name.startswith(incomplete) and name not in used
    ]


def seconds(text: str | float) -> float:
    """Parse a duration such as `500ms`, `2m` or `7d`; typer.BadParameter for anything else."""
    value = seconds_in(str(text))
    if value is None:
        raise typer.BadParameter(
            f"`{text}` is not a duration; write one as 500ms, 5s, 2m, 1h or 7d"
        )
    return value


def workload_argument(default: Path | None, more: str) -> Any:
    """Declare the argument for the workload file; `more` ends its help."""
    return typer.Argument(
        default,
        metavar="WORKLOAD",
        help=f"Workload file (YAML). {more}",
        autocompletion=complete_path,
        rich_help_panel=INPUT,
    )


_MEMORY = (
    "Memory limit for the engine, such as 2GB or 25%. Beyond it, Spark takes over, and large sides "
    "of joins are read from the tables. Default: `budget` in the workload file, or half of the "
    "machine's memory."
)


COMMON: Mapping[str, tuple[Any, Any]] = {
    "workload": (Path, workload_argument(DEFAULT_FILE, f"Default: {DEFAULT_FILE}.")),
    "query": INPUT.common(
        list[str] | None,
        "--query NAME: Only this query; can be repeated. Default: all queries.",
        autocompletion=complete_query,
    ),
    "one_query": INPUT.common(
        list[str] | None,
        "--query NAME: The query to use. Default: the only query in the workload file.",
        autocompletion=complete_query,
    ),
    "params": INPUT.common(
        list[str] | None,
        "--param NAME=VALUE: Set a time-dependent parameter; can be repeated. Default: computed "
        "from the current time.",
    ),
    "now": INPUT.common(
        str | None,
        "--now TIME: Override the current time, used for expiry, `current_date` and the like: "
        "2026-11-25 or 2026-11-25T13:00:00Z. Default: the system time.",
    ),
    "store": STORE_AND_SPARK.common(
        Path | None,
        "--store FOLDER: Folder for sketches and state. Default: `store` in the workload file, or "
        ".impctl.",
    ),
    "policy": MAINTENANCE.common(
        Policy | None,
        "--policy POLICY: Maintenance policy for all queries: auto, incremental (never "
        "recapture), strict (exact maintenance only) or full (always recapture). Default: "
        "`policy` in the workload file, or auto.",
    ),
    "lock_timeout": LIMITS.common(
        float | None,
        "--lock-timeout SECONDS: Wait this long for another writer. Default: 10.",
        min=0,
    ),
    "spark_profile": STORE_AND_SPARK.common(
        Path | None,
        "--spark-profile FILE: YAML file with Spark settings. They override `spark` in the "
        "workload file.",
    ),
    "imbalance": MAINTENANCE.common(
        float | None,
        "--imbalance FACTOR: Warn when the skew of ranges exceeds FACTOR times that at capture. "
        "Default: 4.",
        min=1,
    ),
    "large_change": LIMITS.common(
        int | None,
        "--large-change MB: Let Spark pre-aggregate a change with more MB of changed files. "
        "Default: 512.",
        min=0,
    ),
    "memory": LIMITS.common(str | None, f"--memory SIZE: {_MEMORY}"),
    "follow_memory": LIMITS.common(
        str | None,
        f"--memory SIZE: {_MEMORY} With --follow, state beyond the limit is dropped, and the "
        "default is no limit.",
    ),
    "disk": LIMITS.common(
        str | None,
        "--disk SIZE: Disk limit for the state of all queries, such as 500MB or 2GB. Beyond it, "
        "the least valuable state is not stored and is read from the tables instead. Default: "
        "`budget` in the workload file, or no limit.",
    ),
    "changes": OUTPUT.common(
        Path | None,
        "--changes FOLDER: Write inserted and deleted rows of materialized results to this "
        "folder, one Parquet file per query and step.",
    ),
    "scrub": LIMITS.common(
        int | None,
        "--scrub MB: Verify up to this many MB of state that no run has used for a day; 0 for "
        "none. Default: 64.",
        min=0,
    ),
    "strict": SAFETY.common(
        bool, "--strict: Fail with exit code 3 if a query cannot have a sketch."
    ),
    "dry_run": SAFETY.common(bool, "--dry-run: Show what would be done, without writing anything."),
    "detailed_exitcode": SAFETY.common(
        bool,
        "--detailed-exitcode: Exit with 2 instead of 0 if there is something to do. Errors keep "
        "their codes.",
    ),
    "json": OUTPUT.common(bool, "--json: Print one JSON document, even on failure."),
    "quiet": OUTPUT.common(bool, "--quiet -q: Print only results and errors."),
    "verbose": OUTPUT.common(
        int,
        "--verbose -v: Print each step to stderr; -vv adds error traces and Spark's log.",
        default=0,
        count=True,
    ),
}
"""The type and the declaration of each, by the name of its parameter."""
_OF_EVERY_COMMAND = ("json", "quiet", "verbose")


class Declared(Struct, frozen=True, dict=True):
    """A command: a function of an `Invocation` and its specific options, and the common options
    before and after these in `--help`. The function makes a job, or is its work if it takes a
    context or a reporter."""

    function: Callable[..., Any]
    before: tuple[str, ...]
    after: tuple[str, ...]

    @cached_property
    def parser_function(self) -> Callable[..., Job]:
        """A function with a parameter for each option."""
        _, *others = inspect.signature(self.function).parameters.values()
        names = dict.fromkeys(("Context", "Outcome", "Reporter"), object)  # loaded in a run
        hints = get_type_hints(self.function, localns=names, include_extras=True)
        specific = [
            p.replace(annotation=hints[p.name]) for p in others if p.name not in ("ctx", "reporter")
        ]
        common = (*self.before, *self.after)
        parameters = [*map(_parameter, self.before), *specific]
        parameters += map(_parameter, (*self.after, *_OF_EVERY_COMMAND))

        def command(**arguments: Any) -> Job:
            display = display_of(*(arguments.pop(name) for name in _OF_EVERY_COMMAND))
            options = {name: arguments.pop(name) for name in common}
            if arguments.get("workload") is not None:
                options["workload"] = arguments["workload"]
            run = Invocation(self.function.__name__, display, options)
            if "ctx" in hints:
                return run.on_context(partial(self.function, run, **arguments))
            if "reporter" in hints:
                return run.job(partial(self.function, run, **arguments))
            job: Job = self.function(run, **arguments)
            return job

        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # `inspect` reads it
            [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        )
        command.__doc__ = self.function.__doc__
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        return command


def takes(*names: str | EllipsisType) -> Callable[[Callable[..., Any]], Declared]:
    """Declare the common options of a command, in the order of `--help`; `...` stands for the other
    options."""
    index = names.index(...)
    before, after = tuple(map(str, names[:index])), tuple(map(str, names[index + 1 :]))
    return lambda function: Declared(function, before, after)


def _parameter(name: str) -> inspect.Parameter:
    kind, info = COMMON[name]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=info, annotation=kind)
