"""Where a table of a catalog lies, as Spark's session tells.

Law: the location is the catalog's own at the time of asking; a catalog that does not tell one is an
error, never a guess. Only SQL is used, so that any kind of session can be asked.
Out of scope: what lies there (`tables`), when a catalog is asked (`app.workbench.pinned`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.data.schema import quoted
from impctl.errors import ImpctlError, TableError
from impctl.spark.failures import plain_failures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

_DETAILS = "# Detailed Table Information"


def catalog_location(spark: SparkSession, parts: Sequence[str]) -> str:
    """The folder or URI of the table called so; TableError where the catalog tells none."""
    name = ".".join(map(quoted, parts))
    try:
        with plain_failures():
            rows = spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
    except ImpctlError as error:
        raise _untold(".".join(parts), error.message) from error
    titles = [str(row[0]) for row in rows]
    # Above the details stand the columns, which may be called anything.
    details = rows[titles.index(_DETAILS) :] if _DETAILS in titles else []
    result = [str(row[1]) for row in details if row[0] == "Location" and row[1]]
    if not result:
        raise _untold(".".join(parts), "it has no location (it may be a view)")
    return result[0]


def _untold(name: str, reason: str) -> TableError:
    return TableError(
        f"Spark's catalog does not give the location of table `{name}`: {reason}",
        hint="add the catalog's settings under `spark.conf`, or set `path` to the table's folder",
        code="catalog_table_unknown",
    )
