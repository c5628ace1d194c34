"""Where a run's Spark session comes from: its own process, or the program that called it.

Law: a program that has Spark running keeps its session untouched; the run works beside it. A
session that was launched here stays with the process, so that the next run need not wait for it.
Out of scope: settings and their checks (`spark.session`, `spark.session`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from impctl.errors import UsageError
from impctl.workload.models import SparkSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"


class Sessions(Protocol):
    """Gives a run its session when a step first needs it."""

    @property
    def is_running(self) -> bool:
        """Whether a session can be had without starting Spark."""

    def open(self, spec: SparkSpec) -> SparkSession:
        """The session with these settings."""


class OwnSession:
    """The process's one session, which a command works in and may configure.

    It is running where an earlier run of this process has launched it.
    """

    def __init__(self, log_level: str = "off") -> None:
        self._log_level = log_level

    @property
    def is_running(self) -> bool:
        return _is_up()

    def open(self, spec: SparkSpec) -> SparkSession:
        """The session with these settings, launched unless a run before has done so."""
        from impctl.spark.session import SparkSettings, open_session

        master = master_of(spec.master)
        return open_session(SparkSettings(master, spec.conf, self._log_level))


class SessionBeside:
    """A session of its own beside the one given, else beside the one that is running.

    Kept from run to run as long as its Spark is up and the settings stay the same.
    """

    def __init__(self, given: SparkSession | None) -> None:
        if given is not None:
            from impctl.spark.session import require_session

            require_session(given)
        self._given = given
        self._made: tuple[object, SparkSpec, SparkSession] | None = None

    @property
    def is_running(self) -> bool:
        return _is_up()

    def open(self, spec: SparkSpec) -> SparkSession:
        """The session; where Spark is not up it is launched as a command would."""
        from impctl.spark.session import home_of, session_beside

        base = self._base(spec)
        if self._made is not None:
            context, made_for, session = self._made
            if context is home_of(base) and made_for == spec:
                return session
        session = session_beside(base, spec.conf)
        self._made = (home_of(base), spec, session)
        return session

    @contextmanager
    def visit(self) -> Iterator[None]:
        """A run, after which the program finds Spark as it left it."""
        from impctl.spark.session import guest

        with guest():
            yield

    def _base(self, spec: SparkSpec) -> SparkSession:
        from impctl.spark.session import is_usable, running_session

        if self._given is None:
            running = running_session()
            return OwnSession().open(spec) if running is None else running
        if not is_usable(self._given):
            raise UsageError(
                "The given Spark session was stopped",
                code="spark_session_stopped",
                hint="open the workload again with a running session, or without one",
            )
        return self._given


def master_of(asked: str | None) -> str:
    """Where Spark is to run: the environment's `SPARK_REMOTE` first, then what is asked for."""
    from impctl.spark import session as connect

    return connect.master_of(asked, os.environ, DEFAULT_MASTER)


def _is_up() -> bool:
    from impctl.spark.session import running_session

    return running_session() is not None
