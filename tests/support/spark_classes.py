"""An archive of the classes that Spark loads: JVMs of tests start in half the time.

Law: tests give the same results without it. A JVM that cannot use the archive silently loads its
classes one by one. The archive is built while the first tests run, once for each Java and pyspark,
and gets its name only when it is complete.
Out of scope: JVMs of tests that measure, which start like a user's (`conftest`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_LIKE_TESTS = """
import os, sys, tempfile
from pyspark import SparkContext
from impctl.spark.session import SparkSettings, open_session

session = open_session(SparkSettings("local[2]", {}))
with tempfile.TemporaryDirectory() as folder:
    session.range(40).selectExpr("id AS k", "id % 3 AS g", "'x' AS s").write.parquet(folder + "/t")
    session.read.parquet(folder + "/t").createOrReplaceTempView("t")
    session.sql(
        "SELECT a.g, SUM(b.k) AS v, RANK() OVER (ORDER BY a.g) AS r FROM t a JOIN t b ON a.g = b.g"
        " WHERE a.k > 3 GROUP BY a.g HAVING COUNT(DISTINCT b.s) > 0 ORDER BY v LIMIT 2"
    ).toArrow()
java = SparkContext._gateway.proc
session.stop()
java.stdin.close()
java.wait()
os.replace(*sys.argv[1:])
"""
_PATIENCE = 600
"""Seconds after which a process that builds an archive is considered dead."""


def class_archive(options: str) -> str:
    """JVM options that use the archive, which is built in the background if it is missing."""
    # Tests without Spark start without it.
    import pyspark

    from impctl.spark.session import find_java

    java = find_java(os.environ)
    key = f"{java.program} {java.version} {pyspark.__version__} {pyspark.__file__} {options}"
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    archive = Path(tempfile.gettempdir()) / f"impctl-tests-{os.getuid()}" / f"{name}.jsa"
    archive.parent.mkdir(mode=0o700, exist_ok=True)
    if not archive.exists():
        _begin(archive, options)
    return f"-XX:SharedArchiveFile={archive} -Xlog:disable"


def _begin(archive: Path, options: str) -> None:
    """Start a process that builds the archive, unless one is running."""
    started, unfinished = archive.with_suffix(".begun"), archive.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - started.stat().st_mtime > _PATIENCE:
            started.unlink()
    try:
        started.touch(exist_ok=False)
    except FileExistsError:
        return
    options = f"{options} -XX:ArchiveClassesAtExit={unfinished} -Xlog:disable"
    # By a shell that does not wait: a direct child would have to be waited for.
    subprocess.run(
        ["sh", "-c", 'nohup "$@" >/dev/null 2>&1 </dev/null &', "sh", sys.executable, "-P", "-c"]
        + [_LIKE_TESTS, str(unfinished), str(archive)],
        env={**os.environ, "SPARK_SUBMIT_OPTS": options},
        check=True,
    )
