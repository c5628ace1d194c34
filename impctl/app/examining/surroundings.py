"""What impctl runs on, as findings: Python, packages, variables, Java, the Delta JAR, Spark.

Law: starts no JVM and imports neither pyspark nor anything else it judges, but for `try_spark`,
which is done when asked for.
Out of scope: tables (`app.examining.tables`), the store (`app.examining.store`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from impctl.app.examining.requirements import Installed, installed
from impctl.app.examining.spark_reading import FileReading
from impctl.app.results.findings import Area, Finding, Subject
from impctl.app.workbench.envvars import ENVVARS, PREFIX
from impctl.errors import ImpctlError
from impctl.spark.session import JAVA_HINT, OLDEST_JAVA, java_candidates, released_version, shown
from impctl.workload.models import SparkSpec

_SHOWN = ("python", "pyspark", "deltalake", "pyarrow")
"""Named even when all is well; the other packages only otherwise."""
_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_JAR_SETTINGS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")
_NO_JAVA = (
    "capture and maintain usually work without it; `query`, `verify` and recapture with Spark fail"
)


def software(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Python, the packages, variables and Java."""
    yield from _packages(installed())
    yield from _variables(environment)
    yield _java(environment)


def delta_jar(spark: SparkSpec | None) -> Finding:
    """What of the Delta JAR is needed: nothing; and whether it is there all the same."""
    result = sorted({*_jars_of_pyspark(), *_jars_of(spark)})
    there = f"; it is installed ({', '.join(result)}) and does no harm" if result else ""
    return Subject(Area.SPARK, "delta jar").ok(
        "delta_jar",
        "The Delta JAR is not needed: impctl reads Delta tables with deltalake, and "
        f"Spark reads their Parquet files{there}",
    )


def try_spark(
    master: str, conf: Mapping[str, str], log_level: str
) -> tuple[Finding, FileReading | None]:
    """Start a session as the workload would, and run one query in it.

    With it what reads files in that session; None where there is no session that answers.
    """
    from impctl.spark.run import run_sql
    from impctl.spark.session import SparkSettings, open_session
    from impctl.spark.snapshots import rows_of_smallest_file

    subject = Subject(Area.SPARK, "session")
    start = time.perf_counter()
    try:
        session = open_session(SparkSettings(master, conf, log_level))
        answer = run_sql(session, "SELECT 1 AS one", {})
    except ImpctlError as error:
        return subject.failed("spark_session", error), None
    took = time.perf_counter() - start
    assert answer.column("one").to_pylist() == [1]
    finding = subject.ok(
        "spark_session",
        f"Spark {session.version} on `{shown(master)}` started and answered within {took:.1f} s",
    )
    return finding, partial(rows_of_smallest_file, session)


def _packages(result: tuple[Installed, ...]) -> Iterator[Finding]:
    subject = Subject(Area.SOFTWARE, "packages")
    if not result:
        yield subject.warning(
            "supported_versions",
            "The supported versions are unknown, because impctl is not installed as a package",
            "run `pip install impctl`",
        )
        return
    good = [one for one in result if one.is_supported]
    named = [f"{one.name} {one.found}" for one in good if one.name in _SHOWN]
    others = len(good) - len(named)
    if good:
        more = f" and {others} more" if others else ""
        words = "are supported versions" if len(good) > 1 else "is a supported version"
        yield subject.ok("supported_versions", f"{', '.join(named)}{more} {words}")
    for one in result:
        if not one.is_supported:
            yield _outside(one)


def _outside(one: Installed) -> Finding:
    subject = Subject(Area.SOFTWARE, one.name)
    if one.name == "python":
        fix = f"create a virtual environment with Python {one.wanted} and install impctl there"
    else:
        fix = f'run `pip install "{one.name}{one.wanted}"`'
    there = "is not installed" if one.found is None else f"{one.found} is not supported"
    return subject.problem(
        "supported_versions", f"{one.name} {there}: impctl needs {one.wanted}", fix, 2
    )


def _variables(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Those that are set, without their values; and those that hardly mean what they are called.

    A workload file may use variables of any name, so one that is like none of ours is let pass.
    """
    subject = Subject(Area.SOFTWARE, "variables")
    known = {entry.name: entry for entry in ENVVARS}
    used = [entry for name, entry in known.items() if environment.get(name)]
    told = ", ".join(
        f"`{entry.name}` ({entry.purpose[:1].lower()}{entry.purpose[1:]})" for entry in used
    )
    yield subject.ok(
        "variables", f"Variables that are set: {told}" if used else "No impctl variable is set"
    )
    stems = [name.removeprefix(PREFIX) for name in known]
    for name in sorted(environment):
        if name.startswith(PREFIX) and name not in known:
            for meant in get_close_matches(name.removeprefix(PREFIX), stems, n=1):
                fix = f"did you mean `{PREFIX}{meant}`?"
                yield subject.warning("variables", f"impctl has no variable `{name}`", fix)


def _java(environment: Mapping[str, str]) -> Finding:
    """By what each Java states in its `release` file."""
    subject = Subject(Area.SOFTWARE, "java")
    seen = []
    unstated = None
    for origin, program in java_candidates(environment):
        version = released_version(program)
        if version is not None and version >= OLDEST_JAVA:
            return subject.ok("java", f"Java {version} at {program} ({origin})")
        if version is None and program.exists():
            unstated = unstated or f"Java at {program} ({origin}) does not report its version"
        seen.append(f"{origin} has " + ("none" if version is None else f"Java {version}"))
    if unstated is not None:
        return subject.warning("java", unstated, "run `impctl doctor --spark`, which starts Java")
    result = f" ({', '.join(seen)})" if seen else ""
    return subject.problem(
        "java", f"No Java {OLDEST_JAVA} or newer found{result}; {_NO_JAVA}", JAVA_HINT, 2
    )


def _jars_of_pyspark() -> Iterator[str]:
    """Delta's JARs among those that PySpark loads, found without importing it."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        return
    for jar in sorted((Path(spec.origin).parent / "jars").glob("delta-*.jar")):
        yield jar.name


def _jars_of(spark: SparkSpec | None) -> Iterator[str]:
    """Settings that bring or use the JAR, by name: their values may hold secrets."""
    conf = {} if spark is None else spark.conf
    for name in _JAR_SETTINGS:
        if "delta" in conf.get(name, ""):
            yield f"`{name}`"
    if _DELTA_EXTENSION in conf.get("spark.sql.extensions", ""):
        yield "`spark.sql.extensions`"
