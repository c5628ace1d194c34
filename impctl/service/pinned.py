"""The tables of a run, each pinned at the version that was newest when it was first used.

Law: a pinned version stays for the whole run, unless an older one is pinned before anything was
computed from it, or the run itself has changed the table; a snapshot is taken once. These tables
give access to neither store nor Spark, which only resolves the path of a catalog's table.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from impctl.errors import ImpctlError, UsageError
from impctl.sql.names import CATALOG_SCHEME
from impctl.tables.log import PinnedTable, open_newest, pin_table
from impctl.tables.source import DeltaSource, advance, clone_roots, open_source

if TYPE_CHECKING:
    from impctl.tables.rows import ColumnCache
    from impctl.tables.sample import KeyColumns, KeyCounts
    from impctl.tables.snapshot import Snapshot
    from impctl.types import TableName, TableVersion
    from impctl.workload.models import TableSpec

T = TypeVar("T")


class PinnedTables:
    """The workload's tables, opened on first use."""

    def __init__(
        self,
        specs: Mapping[TableName, TableSpec],
        locate: Callable[[str], str] = lambda name: CATALOG_SCHEME + name,
    ) -> None:
        self._specs = specs
        self._locate = locate
        """The path of a table by its catalog name, looked up once per run."""
        self._located: dict[TableName, str] = {}
        self._sources: dict[TableName, DeltaSource] = {}
        self._seen: dict[TableName, PinnedTable] = {}
        self._facts: dict[TableName, dict[Hashable, Any]] = {}
        """Values computed from each table's files, by subject."""
        self._recalled: dict[TableName, PinnedTable] = {}
        self._once: ColumnCache | None = None

    def recall(self, known: Mapping[TableName, PinnedTable]) -> None:
        """Reuse tables pinned by an earlier, finished run of this process: where that is safe, only
        additions to a table's log are read."""
        self._recalled.update(known)

    @property
    def seen(self) -> Mapping[TableName, PinnedTable]:
        """The tables used so far, as pinned."""
        return self._seen

    def source(self, table: TableName) -> DeltaSource:
        """The table, pinned at the version that was newest when first used."""
        result = self._sources.get(table)
        if result is None:
            result = self._again(table) or self.opened(table)
            self.pin(result)
        return result

    @property
    def once(self) -> ColumnCache:
        """What was decoded of files in this run, shared by all lookups."""
        from impctl.tables.rows import ColumnCache

        if self._once is None:
            self._once = ColumnCache()
        return self._once

    @property
    def unused(self) -> Mapping[TableName, PinnedTable]:
        """Recalled tables that were not used."""
        return self._recalled

    def _again(self, table: TableName) -> DeltaSource | None:
        known, spec = self._recalled.pop(table, None), self._specs[table]
        if (
            known is None
            or known.source.path != self._path(spec)
            or known.source.storage_options != (dict(spec.storage_options) or None)
            or known.source.clone_of != clone_roots(spec.clone_of)
        ):
            return None
        try:
            return open_newest(known)
        except ImpctlError:
            return None

    def opened(self, table: TableName) -> DeltaSource:
        """The table opened now at its newest version and not pinned, for a writer."""
        spec = self._specs[table]
        path = self._path(spec)
        if not spec.ambient:
            for location in (path, *spec.clone_of):
                check_credentials(table, location, spec.storage_options, os.environ)
        return open_source(table, path, dict(spec.storage_options) or None, spec.clone_of)

    def _path(self, spec: TableSpec) -> str:
        if not spec.path.startswith(CATALOG_SCHEME):
            return spec.path
        if spec.name not in self._located:
            name = spec.path.removeprefix(CATALOG_SCHEME)
            self._located[spec.name] = self._locate(name)
        return self._located[spec.name]

    def versions_of(self, tables: Iterable[TableName]) -> dict[TableName, TableVersion]:
        return {table: self.source(table).version for table in tables}

    def pin(self, source: DeltaSource) -> None:
        self._sources[source.name] = source
        self._seen[source.name] = pin_table(source)

    def mark(self, table: TableName) -> str | None:
        """The mark of the table's pinned commit, taken when it was pinned."""
        self.source(table)
        return self._seen[table].mark

    def repin(self, table: TableName) -> DeltaSource:
        """Open the table again after a change: it may have been replaced."""
        self._sources.pop(table, None)
        self._facts.pop(table, None)
        return self.source(table)

    def pin_at(self, table: TableName, version: TableVersion) -> None:
        """Pin an older version, before any other use; errors as of `DeltaSource.snapshot`."""
        self.pin(self.source(table).at(version))

    def advance(self, table: TableName) -> DeltaSource:
        """Pin a table that only this process writes at its newest version."""
        result = self._sources[table] = advance(self.source(table))
        # As in a separate run, which finds nothing decoded.
        self._once = None
        self._seen[table] = PinnedTable(result, None, None)
        return result

    def snapshot(self, table: TableName, version: TableVersion | None = None) -> Snapshot:
        """The table's snapshot at a version (default: the pinned one)."""
        source = self.source(table)
        version = source.version if version is None else version
        return self.fact(table, ("snapshot", version), lambda: source.snapshot(version))

    def fact(self, table: TableName, about: Hashable, make: Callable[[], T]) -> T:
        """What `make` computes from a table's files, computed once; `about` names all it depends
        on."""
        facts = self._facts.setdefault(table, {})
        if about not in facts:
            facts[about] = make()
        result: T = facts[about]
        return result

    def forget_files(self, table: TableName) -> None:
        """Forget a table's file list, so that the next measurement pays for listing it."""
        self._sources[table] = self.source(table).for_next_run()
        self._facts.pop(table, None)

    def key_counts(self, table: TableName, columns: KeyColumns, one_in: int) -> KeyCounts:
        """The keys of the table's snapshot, counted once; errors as of `read_batches`."""
        from impctl.tables.sample import MANY_ROWS, key_counts, sampled_counts

        snapshot = self.snapshot(table)

        def counted() -> KeyCounts:
            if one_in > 1 and snapshot.likely_rows <= MANY_ROWS:
                # All keys of such a table are needed too, and it is read once for both.
                return sampled_counts(self.key_counts(table, columns, 1), one_in)
            return key_counts(snapshot, columns, one_in)

        return self.fact(table, ("keys", snapshot.version, columns, one_in), counted)

    def rows_of(self, tables: Sequence[TableName]) -> int:
        """Rows of these tables as pinned, estimated from bytes where the log is silent."""
        return sum(self.snapshot(table).likely_rows for table in tables)


# Credentials for object stores. Law: those of the environment (variables, profiles, the machine's
# role) are used only for a table whose workload allows it; any other needs its own, whatever its
# server.

_S3 = ("s3", "s3a", "s3n")
_GOOGLE = {"service_account", "service_account_path", "service_account_key", "skip_signature"}
_AZURE = {
    *("account_key", "access_key", "master_key", "sas_token", "sas_key", "bearer_token"),
    *("token", "client_secret", "federated_token_file", "use_emulator", "skip_signature"),
}
_SUFFICIENT = {
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    **dict.fromkeys(("abfss", "abfs", "az", "azure", "adl"), _AZURE),
}
"""Options of which one is enough, by scheme."""
_TOKEN = "AWS_SESSION_TOKEN"
_PREFIX = re.compile(r"^(aws_|google_|azure_storage_|azure_)")


def check_credentials(
    table: TableName, path: str, options: Mapping[str, str], env: Mapping[str, str]
) -> None:
    """UsageError for a table in an object store: `credentials_missing` if its storage options lack
    credentials, `credentials_mixed` if deltalake would add a variable of `env` to them."""
    scheme = path.partition("://")[0].lower() if "://" in path else ""
    settings = {_PREFIX.sub("", key.lower()): value for key, value in options.items() if value}
    if settings.get("skip_signature", "").lower() not in ("true", "1"):
        settings.pop("skip_signature", None)
    missing = ""
    if scheme in _S3 and "skip_signature" not in settings:
        lacking = [key for key in ("access_key_id", "secret_access_key") if key not in settings]
        missing = " and ".join(f"`aws_{key}`" for key in lacking) + " not set" if lacking else ""
    elif scheme in _SUFFICIENT and settings.keys().isdisjoint(_SUFFICIENT[scheme]):
        missing = "no key in `storage_options`"
    if missing:
        raise UsageError(
            f"Table `{table}` is in an object store and has no credentials: {missing}, and no "
            "`credentials: ambient`",
            code="credentials_missing",
            hint=f"set them in `tables.{table}.storage_options`, or write `credentials: ambient` "
            "there or at the top of the file to use those of the environment",
        )
    # deltalake fills in what the options lack, so another user's token would go with the keys.
    keys = {_PREFIX.sub("", key.lower()) for key in options}
    needs_token = keys.isdisjoint(("session_token", "token", "skip_signature"))
    if scheme in _S3 and env.get(_TOKEN) and needs_token:
        raise UsageError(
            f"Table `{table}` has keys without a session token, and `{_TOKEN}` from the "
            "environment would be sent with them",
            code="credentials_mixed",
            hint=f"unset `{_TOKEN}`, set `aws_session_token` in `tables.{table}.storage_options`, "
            "or write `credentials: ambient`",
        )
