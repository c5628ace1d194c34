"""Which batches are in a table, by one reading of its log that is carried on as the log grows.

Law: the answer is that of `batch_identity.version_with`, which reads the log anew each time. Where
this reading may miss an identity, or know one that Delta has forgotten, that function is asked.
Cost: the log from its newest checkpoint on, once; then what others add, entry by entry.
Out of scope: what an identity is made of (`tables.write.batch_identity`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import Any

import pyarrow.parquet as pq

from impctl.tables.commits import read_commits
from impctl.tables.failures import READ_FAILURES
from impctl.tables.source import DeltaSource
from impctl.tables.storage import local_path, object_store, read_text
from impctl.tables.write.batch_identity import PREFIX, brought_in, version_with
from impctl.types import TableVersion

_FORGETTING = "delta.setTransactionRetentionDuration"
_HINT = "_delta_log/_last_checkpoint"


class AppliedBatches:
    """The batches in one table up to a version; for one history of it, as `source` leads on."""

    def __init__(self) -> None:
        self._texts: dict[TableVersion, str] = {}
        self._meant: dict[str, TableVersion] = {}
        """The version that each batch's newest commit was meant for, by identity."""
        self._until: TableVersion | None = None
        """Commits up to this version are in `_meant`; None before the log was read."""

    def version_with(self, source: DeltaSource, identity: str) -> TableVersion | None:
        """As of the function of this name."""
        if not self._read_on(source):
            return version_with(source, identity)
        meant = self._meant.get(identity)
        if meant is None:
            return None
        return brought_in(source, identity, meant, self._texts)

    def add(self, identity: str, meant: TableVersion, version: TableVersion) -> None:
        """The batch came in with this version; what lies before it may not have been read yet."""
        if self._until == version - 1:
            self._meant[identity] = meant
            self._until = version

    def _read_on(self, source: DeltaSource) -> bool:
        """Read the log up to the version of `source`; whether all identities are known then."""
        if _FORGETTING in source.delta.metadata().configuration:
            return False
        if self._until is None and not self._take_checkpoint(source):
            return False
        assert self._until is not None
        commits = read_commits(source, self._until, source.version, self._texts)
        if commits is None:
            return False
        for version, text in enumerate(commits.texts, start=self._until + 1):
            self._texts[version] = text
        for actions in commits.by_commit():
            self._take(body for name, body in actions if name == "txn")
        self._until = source.version
        return True

    def _take_checkpoint(self, source: DeltaSource) -> bool:
        """Start with the checkpoint that the log points to, or with its first entry without one."""
        try:
            hint = json.loads(read_text(source.path, source.storage_options, _HINT))
            version, parts = hint["version"], hint.get("parts")
            if not isinstance(version, int) or version > source.version:
                return False
            for name in _checkpoint_names(version, parts):
                self._take(_transactions(source, name))
        except FileNotFoundError:
            version = -1  # whether the hint or its file is missing: all entries tell all
        except READ_FAILURES:
            return False
        except (KeyError, TypeError, AttributeError):  # another shape than the protocol's
            return False
        self._until = version
        return True

    def _take(self, transactions: Iterable[Any]) -> None:
        for body in transactions:
            if str(body["appId"]).startswith(PREFIX):
                self._meant[body["appId"]] = body["version"]


def _checkpoint_names(version: TableVersion, parts: object) -> list[str]:
    if parts is None:
        return [f"_delta_log/{version:020}.checkpoint.parquet"]
    count = int(str(parts))
    digits = (f"{part:010}.{count:010}" for part in range(1, count + 1))
    return [f"_delta_log/{version:020}.checkpoint.{each}.parquet" for each in digits]


def _transactions(source: DeltaSource, name: str) -> list[Any]:
    """The transactions of one file of a checkpoint."""
    folder = local_path(source.path)
    if folder is None:
        store = object_store(source.path, source.storage_options)
        result = pq.read_table(name, columns=["txn"], filesystem=store)
    else:
        result = pq.read_table(os.path.join(folder, name), columns=["txn"])
    return [body for body in result.column("txn").drop_null().to_pylist() if body["appId"]]
