"""A process without impctl that commits to the tables.

Law: a requested change is committed or its error is returned; the process ends with its owner.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

from deltalake import DeltaTable, write_deltalake

from tests.soak.place import Change


class Writer:
    """Sends changes, at most one at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._is_busy = False

    def begin(self, change: Change) -> None:
        """Start to commit a change."""
        self.finish()
        self._connection.send(change)
        self._is_busy = True

    def finish(self) -> None:
        """Wait until the change is committed."""
        if self._is_busy:
            assert self._connection.poll(60), "the writer does not answer"
            error = self._connection.recv()
            assert error is None, error
            self._is_busy = False


@contextmanager
def running_writer() -> Iterator[Writer]:
    context = multiprocessing.get_context("spawn")
    connection, child_end = context.Pipe()
    process = context.Process(target=_serve, args=(child_end,), daemon=True)
    process.start()
    try:
        yield Writer(connection)
    finally:
        connection.send(None)
        process.join(30)
        process.kill()
        process.join()


def _serve(connection: Connection) -> None:
    while (change := connection.recv()) is not None:
        try:
            commit(change)
        except Exception as error:  # noqa: BLE001  # sent to the owner, which fails
            connection.send(f"{change.kind} of {change.path}: {error!r}")
        else:
            connection.send(None)


def commit(change: Change) -> None:
    delta = DeltaTable(change.path)
    match change.kind:
        case "append" | "overwrite":
            write_deltalake(delta, change.rows, mode=change.kind)
        case "delete":
            delta.delete(change.text)
        case "update":
            delta.update(predicate=change.text, updates=change.updates)
        case "optimize":
            delta.optimize.compact()
        case "restore":
            # The first version has no predecessor to restore.
            if delta.version() > 0:
                delta.restore(max(0, delta.version() - 2))
        case _:
            raise ValueError(change.kind)
