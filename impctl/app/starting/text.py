"""The text of a first workload file: tables, candidate partitions, an example query, comments.

Law: what is written here loads, whatever tables and columns are called: names and paths are quoted
where YAML or SQL could read something else in them, and `$` in values, which begins a variable, is
doubled.
Out of scope: choosing what to write (`app.init`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from sqlglot.dialects.spark import Spark

from impctl.data.schema import quoted
from impctl.types import ColumnName, TableName
from impctl.values import dataclass

_PLAIN_PATH = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*")
_PLAIN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_SQL_WORDS = frozenset(word for entry in Spark.Tokenizer.KEYWORDS for word in entry.upper().split())
SCHEMA_FILE = "impctl.schema.json"


@dataclass(frozen=True, slots=True)
class ProposedColumn:
    """A column to cut into ranges, and a remark on it."""

    column: ColumnName
    ranges: int
    remark: str


@dataclass(frozen=True, slots=True)
class FirstTable:
    """A table of the file; its example query groups by `group_by` and sums `measure`, if any."""

    name: TableName
    path: str
    remark: str
    candidates: Sequence[ProposedColumn]
    group_by: ColumnName | None
    measure: ColumnName | None


def workload_text(name: str, tables: Sequence[FirstTable], store: str) -> str:
    """The whole file; `store` is a folder beside it."""
    return "\n".join(
        [
            f"# yaml-language-server: $schema={SCHEMA_FILE}",
            "# Next: `impctl check`, then `capture`. `impctl check --schema` lists all keys.",
            "version: 1",
            f"name: {_yaml(name)}",
            "tables:",
            *(line for table in tables for line in _table(table)),
            "# Columns that sketches can split into ranges of about equally many rows. Instead of",
            "# `ranges`, you can give `boundaries: [100, 200]`. A query uses a safe column.",
            "partitions:",
            *(line for table in tables for line in _partitions(table)),
            "queries:",
            "  # Examples; add your own here: groups with HAVING or a top-k save most.",
            *(line for table in tables for line in _query(table)),
            "# Folder of sketches and state, relative to this file.",
            f"store: {_yaml(store)}",
            "# Spark starts only if the engine cannot do the work.",
            "spark:",
            '  master: "local[*]"',
            "  # conf: {spark.driver.memory: 4g}",
            "",
        ]
    )


def _table(table: FirstTable) -> Iterator[str]:
    yield f"  # {table.remark}"
    # A URI was read with the credentials of the surroundings; the file has to say so.
    result = ", credentials: ambient" if "://" in table.path else ""
    yield f"  {_key(table.name)}: {{path: {_yaml(table.path)}{result}}}"


def _partitions(table: FirstTable) -> Iterator[str]:
    if not table.candidates:
        yield f"  # {table.name}: no column can be split into ranges"
        return
    yield f"  {_key(table.name)}:"
    for one in table.candidates:
        yield f"    {_key(one.column)}: {{ranges: {one.ranges}}}  # {one.remark}"


def _query(table: FirstTable) -> Iterator[str]:
    if table.group_by is None:
        return
    column = _sql(table.group_by)
    name, call = "row_count", "COUNT(*)"
    if table.measure is not None:
        name, call = "total", f"SUM({_sql(table.measure)})"
    yield f"  top_of_{table.name}:"
    yield "    sql: |"
    yield f"      SELECT {column}, {call} AS {name} FROM {_sql(table.name)}"
    yield f"      GROUP BY {column} ORDER BY {name} DESC, {column} LIMIT 10"
    yield "    answer: true        # keep the result too: `query` then takes milliseconds"
    yield "    policy: auto        # or incremental, strict, full"
    yield "    maintain: lazy      # or eager: a sketch for every version"


def _yaml(text: str) -> str:
    """A value that is read as this very text."""
    return _key(text.replace("$", "$$"))


def _key(text: str) -> str:
    """A key that YAML reads as this very text; keys hold no variables."""
    if _PLAIN_PATH.fullmatch(text) and text.lower() not in _YAML_WORDS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _sql(name: str) -> str:
    """A name in SQL inside the file, quoted unless it can be nothing else."""
    if _PLAIN_NAME.fullmatch(name) and name.upper() not in _SQL_WORDS:
        return name
    return quoted(name).replace("$", "$$")
