"""Spark Connect: a session in a server elsewhere, reached at an address such as `sc://host:15002`.

Law: what needs the driver's JVM, or the disk of this machine, is asked for nowhere; an address that
cannot be reached and packages that are missing are said before anything waits. An address may hold
a token, so none is ever printed beyond its host.
Out of scope: settings (`spark.session`), sessions of the surrounding program (`spark.beside`).
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from impctl.errors import RetryableError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

REMOTE = "SPARK_REMOTE"
SCHEME = "sc://"
_PORT = 15002
_FAILURES_LOG = "SQLQueryContextLogger"
"""Where the client writes failures of queries, as JSON on stderr."""
_PATIENCE = 10.0
"""Seconds to wait for the server's port; the client itself would try for minutes."""
_NEEDED = ("grpc", "grpc_status", "google.rpc", "pandas", "zstandard")
_PACKAGES_HINT = 'run `pip install "pyspark[connect]" "pandas<3"`'


def master_of(asked: str | None, environment: Mapping[str, str], default: str) -> str:
    """Where Spark is: `SPARK_REMOTE` before what the workload asks for, as Spark itself has it."""
    return environment.get(REMOTE) or asked or default


def is_address(master: str) -> bool:
    return master.startswith(SCHEME)


def shown(master: str) -> str:
    """The master as it may be printed: an address without its token and options."""
    if not is_address(master):
        return master
    return f"{SCHEME}{urlsplit(master).netloc.rpartition('@')[2]}"


def is_connect(session: object) -> bool:
    """Whether this is a session of Spark Connect; asked of its class, which needs no package."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(session).__mro__}
    return "pyspark.sql.connect.session.SparkSession" in kinds


def open_remote(address: str) -> SparkSession:
    """A session at the server of this address, given back when the process ends.

    Raises UsageError for missing packages or an address that is none, RetryableError where nobody
    answers.
    """
    _require_packages()
    _require_answer(address)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    try:
        session = SparkSession.builder.remote(address).getOrCreate()
        # Only an answer shows that the other side is Spark, and of a version that understands us.
        _ = session.version
    except PySparkException as error:
        raise _unreachable(address, str(error).splitlines()[0]) from error
    _quieten()
    atexit.register(session.stop)
    return session


def _quieten() -> None:
    """Failures of queries are raised, and told by whoever asked; the client prints them, too."""
    from pyspark.logger import PySparkLogger

    PySparkLogger.getLogger(_FAILURES_LOG).setLevel(logging.CRITICAL)


def another(session: SparkSession) -> SparkSession:
    """A new session at the server of this one; UsageError where the client cannot make one."""
    if hasattr(session, "newSession"):
        made: SparkSession = session.newSession()
    elif os.environ.get(REMOTE):
        # Before PySpark 4.3 a session does not make others, but its address is noted here.
        made = type(session).builder.remote(os.environ[REMOTE]).create()
    else:
        raise UsageError(
            "This version of PySpark cannot create a second session next to a Spark Connect "
            "session",
            code="spark_connect_unsupported",
            hint="install PySpark 4.3 or newer, or set SPARK_REMOTE and do not pass a session",
        )
    atexit.register(made.stop)
    return made


def home_of(session: SparkSession) -> object:
    """What two sessions have in common when they share a Spark; to be compared with `is`."""
    return session.client if is_connect(session) else session.sparkContext


def is_stopped(session: SparkSession) -> bool:
    """Whether a session of Spark Connect was stopped."""
    return bool(getattr(session, "is_stopped", False))


def _require_packages() -> None:
    missing = [name for name in _NEEDED if not _is_there(name)]
    if missing:
        raise UsageError(
            f"Spark Connect needs packages that are not installed: {', '.join(missing)}",
            code="spark_connect_packages",
            hint=_PACKAGES_HINT,
        )


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _require_answer(address: str) -> None:
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port or _PORT
    except ValueError:
        host, port = None, 0
    if host is None:
        raise UsageError(
            f"Not an address of Spark Connect: {shown(address)}",
            code="spark_connect_address",
            hint="use `sc://host:15002`, or with options `sc://host:15002/;use_ssl=true`",
        )
    try:
        socket.create_connection((host, port), timeout=_PATIENCE).close()
    except OSError as error:
        raise _unreachable(address, str(error)) from error


def _unreachable(address: str, why: str) -> RetryableError:
    return RetryableError(
        f"Spark Connect does not answer at `{shown(address)}`: {why}",
        code="spark_connect_unreachable",
        hint="start the server, or correct SPARK_REMOTE or the workload's `spark.master`",
    )
