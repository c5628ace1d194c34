"""How many parts Spark shuffles the rows of a query in, by how much it reads.

Law: what is changed is how long a query takes, never its answer; a number that anybody has chosen
(workload, installation, the session) stays, and after the block the session is as it was.
Every task of a shuffle opens a file per part, 200 by default, whatever there is to write: reading
one file of ten megabytes, that is most of the work (decision 0050).
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


@contextmanager
def shuffles_for(spark: SparkSession, size: int) -> Iterator[None]:
    """Inside, a query that reads files of so many bytes is shuffled in a fitting number of parts.

    Where two threads do so at once, one may find the other's number: no matter but speed.
    """
    # A server elsewhere does not say how many cores it has.
    cores = 0 if is_connect(spark) else spark.sparkContext.defaultParallelism
    wanted = max(_LEAST, 2 * cores, -(-size // _PART_BYTES))
    if wanted >= int(_DEFAULT) or spark.conf.get(PARTITIONS) != _DEFAULT:
        yield
        return
    spark.conf.set(PARTITIONS, str(wanted))
    try:
        yield
    finally:
        # Never what was read before: another thread may have set that.
        spark.conf.unset(PARTITIONS)
