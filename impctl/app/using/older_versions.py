"""`--at VERSION` and `--at TABLE=VERSION`, or a Python value: the table versions asked for.

Law: a version is said of every table of the query, or the run ends with exit code 2; none is
guessed, since the newest of one table beside an old one of another may never have been together.
Out of scope: whether there is a sketch for them (`app.using.older_sketch`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from reprlib import repr as shortened

from impctl.errors import HistoryGoneError, UsageError
from impctl.sql.names import TableNames
from impctl.types import TableName, TableVersion
from impctl.workload.models import QuerySpec
from impctl.workload.yaml import suggestion

AtVersions = Sequence[str] | int | Mapping[str, int]
"""Texts VERSION or TABLE=VERSION, or a version, or versions by table."""

_VERSION = re.compile(r"[0-9]{1,18}")


@contextmanager
def still_there(option: str = "--at") -> Iterator[None]:
    """What reads an older version asked for, whose log or files may be gone: as `version_gone` or
    `data_files_gone`, and to capture now, as is advised of a stored version, brings none back."""
    try:
        yield
    except HistoryGoneError as error:
        code = "version_gone" if option == "--since" else "data_files_gone"
        hint = f"`{option}` takes versions whose log and files still exist"
        raise HistoryGoneError(error.message, code=code, hint=hint) from error


def versions_at(
    spec: QuerySpec,
    tables: Sequence[TableName],
    at: AtVersions,
    names: TableNames,
    option: str = "--at",
) -> dict[TableName, TableVersion]:
    """The version of each of the query's tables, which may be called by any of their names."""
    result: dict[TableName, TableVersion] = {}
    for table, version in _said(at):
        if table is None and len(tables) > 1:
            raise _usage(
                f"Query `{spec.name}` reads {len(tables)} tables, but `{option} {version}` "
                "names none",
                _form(tables, option),
            )
        name = tables[0] if table is None else names.called(table) or table
        if name not in tables:
            raise UsageError(
                f"Query `{spec.name}` does not read a table `{name}`",
                hint=suggestion(name, list(tables), "it reads"),
                code="at_table_unknown",
                location=spec.location,
            )
        if name in result:
            raise _usage(f"The version of table `{name}` occurs twice", "give it once")
        result[name] = _version(name, version)
    missing = [table for table in tables if table not in result]
    if missing:
        listed = " and ".join(f"`{table}`" for table in missing)
        raise _usage(f"`{option}` lacks the version of table {listed}", _form(tables, option))
    return result


def _said(at: AtVersions) -> Iterator[tuple[TableName | None, object]]:
    """Table and version of each text or value; no table where none is named."""
    if isinstance(at, Mapping):
        yield from at.items()
    elif isinstance(at, Sequence) and not isinstance(at, str):
        for text in at:
            table, equals, version = text.rpartition("=")
            yield (table if equals else None), version
    else:
        yield None, at


def _version(table: TableName, said: object) -> TableVersion:
    is_number = isinstance(said, Integral) and not isinstance(said, bool)
    text = str(int(said)) if is_number else said  # type: ignore[call-overload]  # an Integral
    if isinstance(text, str) and _VERSION.fullmatch(text):
        return int(text)
    shown = said if isinstance(said, str) else shortened(said)
    raise _usage(
        f"The version of table `{table}` must be a whole number from 0, not: {shown}",
        "`impctl status` shows the version of the newest sketch",
    )


def _form(tables: Sequence[TableName], option: str) -> str:
    given = " ".join(f"{option} {table}=VERSION" for table in tables)
    return f"give it for every table: `{given}`"


def _usage(message: str, hint: str) -> UsageError:
    return UsageError(message, hint=hint, code="at_syntax")
