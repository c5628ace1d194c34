"""How many tasks Spark makes of a query's shuffle and of looking at its files.

Law: what is changed is how long a query takes, never its answer; a number that anybody has chosen
(workload, installation, the session) stays, and after the block the session is as it was.
Every task of a shuffle opens a file per part, 200 by default, whatever there is to write: reading
one file of ten megabytes, that is most of the work (decision 0050). Files that are named one by one
are looked at by a job with a task for each, 10,000 at most, before anything is read (0066).
Out of scope: which queries may be told so (`app.using.answers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from impctl.spark.connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = "spark.sql.shuffle.partitions"
_DEFAULT = "200"
_PART_BYTES = 4 << 20
"""Bytes of files per part: Spark's own advice is 64 MB, of rows as they are shuffled."""
_LEAST = 8

LISTING = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_DEFAULT_LISTING = "10000"


@contextmanager
def shuffles_for(spark: SparkSession, size: int) -> Iterator[None]:
    """Inside, a query that reads files of so many bytes is shuffled in a fitting number of parts.

    Where two threads do so at once, one may find the other's number: no matter but speed.
    """
    wanted = max(_LEAST, 2 * _cores(spark), -(-size // _PART_BYTES))
    with _unless_chosen(spark, PARTITIONS, _DEFAULT, wanted):
        yield


@contextmanager
def few_listing_tasks(spark: SparkSession) -> Iterator[None]:
    """Inside, Spark looks at files that it is given by name in a few tasks per core.

    A server elsewhere, whose cores are not known, keeps its number.
    """
    cores = _cores(spark)
    wanted = max(_LEAST, 4 * cores) if cores else int(_DEFAULT_LISTING)
    with _unless_chosen(spark, LISTING, _DEFAULT_LISTING, wanted):
        yield


def _cores(spark: SparkSession) -> int:
    """Cores of the session; 0 where it does not say, as a server elsewhere."""
    return 0 if is_connect(spark) else spark.sparkContext.defaultParallelism


@contextmanager
def _unless_chosen(spark: SparkSession, name: str, default: str, wanted: int) -> Iterator[None]:
    """The setting at `wanted` inside, where that is less than the default and nobody chose."""
    if wanted >= int(default) or spark.conf.get(name) != default:
        yield
        return
    spark.conf.set(name, str(wanted))
    try:
        yield
    finally:
        # Never what was read before: another thread may have set that.
        spark.conf.unset(name)
