"""Files of what came and went of answers, one per query and step, for who goes on from them.

Law: a file is whole and safe on the disk before the step is committed that it tells of. Its name
has the number of that commit and the versions it leads from and to, so a run that takes the place
of one that was killed writes the same file, or removes what that one left, with the files of steps
that would have gone on from it. So there is one file for each committed step, and who reads those
up to the committed versions reads each change once.
Out of scope: what came and went (`app.maintaining.answer_changes`), who makes a step
(`app.maintaining.step`).
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from impctl.app.workbench.output import check_output, whole_file
from impctl.app.workbench.workbench import Workbench
from impctl.errors import StorageError, UsageError
from impctl.store.disk import sync_entries
from impctl.store.records import StoredQuery
from impctl.types import QueryName, TableName, TableVersion
from impctl.values import dataclass
from impctl.workload.models import QuerySpec

if TYPE_CHECKING:
    import pyarrow as pa

_LONGEST = 200
"""Characters of a file's name that all file systems take."""

_SAID = b"impctl"
"""The key of what a file says of itself, in its schema."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Whose changes they are, the number of the commit that they come with, and the versions that
    they lead from and to; `moments` are the clock's values after it."""

    query: QueryName
    number: int
    since: Mapping[TableName, TableVersion]
    until: Mapping[TableName, TableVersion]
    moments: Mapping[str, str]

    @property
    def file_name(self) -> str:
        """Such as `000012_orders-5-7.parquet`."""
        parts = [f"{quote(t, safe='')}-{self.since[t]}-{self.until[t]}" for t in sorted(self.until)]
        parts += [f"{quote(n, safe='')}-{quote(v, safe='')}" for n, v in self.moments.items()]
        text = "_".join(parts)
        if len(text) > _LONGEST:
            text = hashlib.sha256(text.encode()).hexdigest()
        return f"{self.number:06}_{text}.parquet"

    def as_json(self) -> str:
        """The same for who reads the file."""
        said = {"query": self.query, "commit": self.number}
        return json.dumps({**said, "since": dict(self.since), "versions": dict(self.until)})


def lead_of(
    stored: StoredQuery, until: Mapping[TableName, TableVersion], moments: Mapping[str, str]
) -> Lead:
    """From what the store has to the commit that comes next."""
    return Lead(stored.query, stored.generation + 1, stored.versions, until, moments)


class ChangeFiles:
    """The files below one folder, in a folder for each query."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, lead: Lead, changes: pa.Table) -> Path:
        """Write the changes of a step that is about to be committed."""
        import pyarrow.parquet as pq

        path = self.folder / lead.query / lead.file_name
        said = {**(changes.schema.metadata or {}), _SAID: lead.as_json().encode()}
        with _translated(path):
            _make_lasting(path.parent)
            with whole_file(path) as file:
                pq.write_table(changes.replace_schema_metadata(said), file)
            for other in _left_behind(lead, path):
                other.unlink(missing_ok=True)
            sync_entries(path.parent)
        return path


def change_files(desk: Workbench) -> ChangeFiles | None:
    """Where the run writes changes of answers; None where it does not."""
    given = desk.settings.changes
    return None if given is None else ChangeFiles(given.absolute())


def check_change_files(
    desk: Workbench, specs: Sequence[QuerySpec], given: Path, *, is_named: bool
) -> None:
    """UsageError where the run cannot write changes of answers, before anything is done.

    Of queries that were named each has to have an answer that is kept; of all of the file, one.
    """
    without = [spec for spec in specs if not spec.answer]
    if without and (is_named or len(without) == len(specs)):
        raise answer_not_kept(without[0])
    if desk.settings.dry_run:
        return
    folder = given.absolute()
    check_output(folder, desk.reserved)
    try:
        _make_lasting(folder)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(
            f"Changes cannot be written to `{given}`: {error.strerror or error}",
            hint="name a folder with write access; it may be new",
            code="changes_folder",
        ) from error


def answer_not_kept(spec: QuerySpec) -> UsageError:
    """The error for a query that has no rows of its answer in the store."""
    hint = "write `answer: true` under the query and run `impctl capture`"
    if spec.answer:
        hint = "`impctl explain` shows why its result is not materialized"
    return UsageError(
        f"The result of query `{spec.name}` is not materialized, so its inserted and "
        "deleted rows are unknown",
        hint=hint,
        code="answer_not_kept",
        location=spec.location,
    )


def _left_behind(lead: Lead, path: Path) -> list[Path]:
    """Files of runs that did not live to commit them: of the same commit from the same versions,
    and of steps that would have gone on from there.

    The last of them first: whoever is killed while removing them leaves a beginning to find.
    """
    numbers: dict[int, list[Path]] = {}
    for other in path.parent.glob("*.parquet"):
        written = other.name.partition("_")[0]
        if written.isdecimal() and int(written) >= lead.number:
            numbers.setdefault(int(written), []).append(other)
    paths: list[Path] = []
    number, since, reached = lead.number, [dict(lead.since)], [dict(lead.until)]
    while since:
        for other in numbers.get(number, ()):
            said = None if other == path else _told(other, lead.query)
            if said is not None and said["since"] in since:
                paths.append(other)
                reached.append(said["versions"])
        number, since, reached = number + 1, reached, []
    parts = path.parent.glob(f".{lead.number:06}_*.part")
    return [*reversed(paths), *parts]


def _told(path: Path, query: QueryName) -> dict[str, Any] | None:
    """What a file says of itself; None where it is no file of ours, of this query."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with suppress(OSError, pa.ArrowException, ValueError, AttributeError):
        said = json.loads((pq.read_schema(path).metadata or {}).get(_SAID, b"null"))
        if said.get("query") == query and said.keys() >= {"since", "versions"}:
            return dict(said)
    return None


def _make_lasting(folder: Path) -> None:
    """Make the folder, so that a power cut after the commit does not take it away."""
    missing = [one for one in (*reversed(folder.parents), folder) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_entries(one.parent)


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"The changes could not be written to `{path}`: {error.strerror or error}",
            hint="free disk space or grant write access, and run the command again; nothing was "
            "committed",
            code="changes_not_written",
        ) from error
