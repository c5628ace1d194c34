"""Resolves names of tables in SQL: short, full, quoted, or by path. As in Spark, the default
catalog and schema complete names, and case is ignored. A table may have many names; a name means
one table. `delta` and a path mean the table at that path, unless a schema has that name."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field

from impctl.data.schema import name_parts

if TYPE_CHECKING:
    from impctl.types import TableName

SPARK_CATALOG, SPARK_SCHEMA = "spark_catalog", "default"
"""Spark's defaults for missing parts of a name."""

FullName = tuple[str, str, str]
"""Catalog, schema and table, in lower case."""

CATALOG_SCHEME = "catalog://"
"""Prefix for a table whose folder Spark's catalog knows."""

_FILE = re.compile(r"file:/{1,3}(?=[^/])", re.IGNORECASE)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_ONE_STORE = {"s3a": "s3", "s3n": "s3"}


class TableNames(Struct, frozen=True):
    """All names of tables; `paths` are keys of `path_key`."""

    tables: Mapping[FullName, TableName]
    paths: Mapping[str, TableName] = field(default_factory=dict)
    catalog: str = SPARK_CATALOG
    schema: str = SPARK_SCHEMA

    @classmethod
    def of(cls, tables: Iterable[TableName]) -> Self:
        """Names for tables that are called by their names alone, whatever characters these have."""
        return cls({(SPARK_CATALOG, SPARK_SCHEMA, name.lower()): name for name in tables})

    def full(self, parts: Sequence[str]) -> FullName | None:
        """Full name; None for more parts than a table name has."""
        if not 1 <= len(parts) <= 3:
            return None
        catalog, schema, name = self.completed(parts)
        return catalog.lower(), schema.lower(), name.lower()

    def completed(self, parts: Sequence[str]) -> tuple[str, ...]:
        """The name with default parts added, letters as written."""
        return (*(self.catalog, self.schema)[: max(0, 3 - len(parts))], *parts)

    def find(self, parts: Sequence[str]) -> TableName | None:
        full = self.full(parts)
        result = None if full is None else self.tables.get(full)
        if result is None and is_path(parts):
            return self.paths.get(path_key(parts[1]))
        return result

    def called(self, written: str) -> TableName | None:
        """The table of a written name such as ``main.`my shop`.sales``."""
        parts = name_parts(written)
        return None if parts is None else self.find(parts)


def is_path(parts: Sequence[str]) -> bool:
    """Whether the name is `delta` and a path."""
    return len(parts) == 2 and parts[0].lower() == "delta" and "/" in parts[1]


def path_key(path: str) -> str:
    """One spelling for all spellings of a path that Spark and deltalake treat as one folder."""
    scheme = _SCHEME.match(path)
    if scheme is not None and scheme[1].lower() != "file":
        known = scheme[1].lower()
        rest = path[scheme.end() :].rstrip("/")
        return f"{_ONE_STORE.get(known, known)}://{rest}"
    match = _FILE.match(path)
    return posixpath.normpath(path if match is None else "/" + path[match.end() :])
