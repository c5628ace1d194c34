"""Reader features and column mapping modes: read past, or refused by name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from impctl.errors import TableError
from impctl.tables.rows import read_rows
from impctl.tables.source import open_source
from impctl.tables.storage import check_reader_features, feature_named_in
from tests.tables import handmade

FIELDS = [handmade.field("id", "long")]


def make(path: Path, *reader: str, configuration: dict[str, str] | None = None) -> str:
    file = handmade.added(path, "a.parquet", pa.table({"id": [1, 2]}))
    return handmade.create(path, FIELDS, file, features=reader, configuration=configuration)


@pytest.mark.parametrize("feature", ["fooBar", "catalogManaged"])
def test_unknown_reader_feature_is_named(tmp_path: Path, feature: str) -> None:
    named = {"catalogManaged": "catalog-managed"}.get(feature, feature)
    with pytest.raises(TableError, match=f"`t` needs reader feature `{named}`") as caught:
        open_source("t", make(tmp_path, feature))
    assert caught.value.code == "reader_feature_unknown"


def test_feature_that_deltalake_knows_and_impctl_does_not() -> None:
    with pytest.raises(TableError, match="reader feature `quantum`"):
        check_reader_features("t", ["deletionVectors", "quantum"])


LISTED = (
    "deletionVectors columnMapping timestampNtz v2Checkpoint vacuumProtocolCheck typeWidening "
    "variantType"
)


@pytest.mark.parametrize("feature", LISTED.split())
def test_listed_is_not_used(tmp_path: Path, feature: str) -> None:
    snapshot = open_source("t", make(tmp_path, feature)).snapshot()
    assert read_rows(snapshot, ["id"]).column("id").to_pylist() == [1, 2]


def test_a_feature_that_vectors_cannot_be_read_beside_is_named(tmp_path: Path) -> None:
    """Trying again would not help, as it may where the log cannot be read."""
    source = open_source("t", make(tmp_path, "deletionVectors", "typeWidening"))
    with pytest.raises(TableError, match="reader feature `TypeWidening`") as caught:
        source.snapshot()
    assert caught.value.code == "reader_feature_unknown"


def test_mapping_by_id_is_refused(tmp_path: Path) -> None:
    fields = [
        handmade.field(
            "id", "long", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "x"}
        )
    ]
    configuration = {"delta.columnMapping.mode": "id"}
    handmade.commit(
        tmp_path,
        0,
        {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}},
        handmade.metadata(fields, configuration=configuration),
    )
    with pytest.raises(TableError, match="uses column mapping mode `id`"):
        open_source("t", str(tmp_path)).snapshot()


def test_features_in_error_texts() -> None:
    assert feature_named_in("Unsupported: Feature 'a' is not supported") == "a"
    assert feature_named_in("Unsupported table features required: [A, B]") == "A, B"
    assert feature_named_in("something else") is None
