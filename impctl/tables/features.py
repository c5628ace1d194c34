"""Which Delta protocol features impctl can read past, and the refusal by name of the others.

Law: a reader feature that impctl does not know is fatal, because it may change what a file means;
a known one is fatal only where the table really uses it in a way that cannot be read.
Out of scope: columns that cannot be read (`tables.schema`), writing (`tables.write.updates`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from impctl.errors import TableError
from impctl.types import TableName

_READABLE = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        # Listed is not used: these show in the columns that use them (`tables.schema`).
        "typeWidening",
        "typeWidening-preview",
        "variantType",
        "variantType-preview",
        "variantShredding",
        "variantShredding-preview",
        "collations",
        "collations-preview",
    }
)
_NAMED = (
    re.compile(r"[Ff]eature '([^']+)'"),
    re.compile(r"(catalog-managed) table"),
    re.compile(r"table features required: \[([^\]]+)\]"),
)


def check_reader_features(table: TableName, features: Collection[str]) -> None:
    """Raise TableError for the first reader feature impctl does not know."""
    for feature in sorted(set(features) - _READABLE):
        raise unknown_feature(table, feature)


def check_column_mapping(
    table: TableName,
    configuration: Mapping[str, str],
    reader_version: int,
    reader_features: Collection[str],
) -> bool:
    """Whether names are mapped; raise TableError for a mode that is not by name, and for one that
    the table's protocol does not support: some readers follow it, others do not."""
    mode = configuration.get("delta.columnMapping.mode", "none").lower()
    is_supported = reader_version == 2 or "columnMapping" in reader_features
    if mode != "none" and not is_supported:
        raise TableError(
            f"Table `{table}` has `delta.columnMapping.mode` = `{mode}`, and its protocol does not"
            " support column mapping",
            hint="upgrade the table's protocol, or set the property to `none`",
            code="column_mapping_mode",
        )
    if mode not in ("none", "name"):
        raise TableError(
            f"Table `{table}` uses column mapping mode `{mode}`, which impctl does not support",
            hint="rewrite the table with `delta.columnMapping.mode` = `name`",
            code="column_mapping_mode",
        )
    return mode == "name"


def unknown_feature(table: TableName, feature: str) -> TableError:
    """The refusal for a reader feature."""
    return TableError(
        f"Table `{table}` needs reader feature `{feature}`, which impctl does not support",
        hint="drop the feature from the table, or read the table with the Delta JAR",
        code="reader_feature_unknown",
    )


def feature_named_in(text: str) -> str | None:
    """The feature that an error text of the reader complains about."""
    for pattern in _NAMED:
        match = pattern.search(text)
        if match is not None:
            return match.group(1)
    return None
