"""Files and folders that the user asks impctl to write, whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from impctl.errors import StorageError, UsageError

# Signals wait until a commit is reported. Law: a signal during the block is delivered once, at its
# end, to the previous handler; an ignored signal stays ignored. Only the main thread gets signals.

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP")


@contextmanager
def held_signals() -> Iterator[None]:
    """Deliver signals to end only after the block, whatever its outcome."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before: dict[int, Callable[..., Any] | int] = {}

    def hold(number: int, frame: FrameType | None) -> None:
        received.append(number)

    try:
        for number in (getattr(signal, name) for name in _NAMES if hasattr(signal, name)):
            handler = signal.getsignal(number)
            # None is a handler that Python does not know and could not put back.
            if handler is not None and handler is not signal.SIG_IGN:
                before[number] = handler
                signal.signal(number, hold)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


# Law: nothing is written into a Delta table, a store or an input file, not even through a link. A
# reader sees the old content or the new, never a part, and the new content is durable. A device, a
# pipe or a link stays one: the content goes through it.

NOTHING_ELSE: Mapping[str, str] = {}


def check_output(path: Path, reserved: Mapping[str, str] = NOTHING_ELSE) -> None:
    """UsageError where this file or folder must not be written. `reserved` maps a description, such
    as "the workload file", to local paths. Tables and stores are detected without being listed."""
    from impctl.store.disk import StoreLayout

    goal = Path(os.path.realpath(path))
    for owner, known in reserved.items():
        if goal.is_relative_to(os.path.realpath(known)):
            raise _reserved(path, owner)
    for folder in (goal, *goal.parents):
        if (folder / "_delta_log").is_dir():
            raise _reserved(path, f"the Delta table at `{folder}`")
        if StoreLayout(folder).catalog.is_file():
            raise _reserved(path, f"the store at `{folder}`")


def _reserved(path: Path, owner: str) -> UsageError:
    return UsageError(
        f"`{path}` cannot be written: it belongs to {owner}",
        hint="name a file or folder outside of tables, stores and the files of the workload",
        code="output_reserved",
    )


def write_whole(path: Path, text: str, reserved: Mapping[str, str] = NOTHING_ELSE) -> None:
    """Write the text, creating missing folders; OSError where that fails."""
    with whole_file(path, reserved, makes_folders=True) as file:
        file.write(text.encode())


@contextmanager
def whole_file(
    path: Path, reserved: Mapping[str, str] = NOTHING_ELSE, *, makes_folders: bool = False
) -> Iterator[BinaryIO]:
    """A binary file that atomically and durably replaces the target if all goes well. Of two
    concurrent writers the last wins. Errors as for `check_output`."""
    check_output(path, reserved)
    if is_special(path):
        with path.open("wb") as file:
            yield file
        return
    goal = Path(os.path.realpath(path))
    if makes_folders:
        goal.parent.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(prefix=f".{goal.name}.", suffix=".part", dir=goal.parent)
    try:
        with os.fdopen(number, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if goal.exists():
            mode = goal.stat().st_mode & 0o777
        else:
            mask = os.umask(0o077)
            os.umask(mask)
            mode = 0o666 & ~mask
        os.chmod(name, mode)
        os.replace(name, goal)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise


def not_written(
    what: str,
    path: Path,
    error: OSError,
    code: str | None = None,
    hint: str = "name a file in a folder with write access",
) -> StorageError:
    """The error of a file that could not be written; `what` it is begins the sentence."""
    # A file where a folder should be: the system says that it exists.
    reason = os.strerror(errno.ENOTDIR) if isinstance(error, FileExistsError) else error.strerror
    message = f"{what} could not be written to `{path}`: {reason or error}"
    return StorageError(message, hint=hint, code=code)


def try_output(path: Path, reserved: Mapping[str, str] = NOTHING_ELSE) -> None:
    """Create and remove a file next to this one; errors as when it is written."""
    check_output(path, reserved)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if is_special(path):
        if os.access(path, os.W_OK):
            return  # Opening a pipe would wait for its reader.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    goal = Path(os.path.realpath(path))
    goal.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=goal.parent):
        pass


def is_special(path: Path) -> bool:
    """Whether the path is a device or a pipe, which a file must not replace."""
    return path.exists() and not path.is_file() and not path.is_dir()
