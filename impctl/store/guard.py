"""Whose a store's folder and files are: what others may write is not read, links are not followed.

Law: who may write the store can write a sketch, and who can put a link into it can have a file
of ours written over; so both are refused before anything is opened. The folder itself may be
reached by a link that belongs to this user or to root, because it was named on purpose.
Out of scope: rights of the tables; the folders above, which decide who may take the store away.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from impctl.errors import UsageError
from impctl.store.layout import Layout
from impctl.store.system import user

_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_store_files(layout: Layout, *, is_shared: bool = False) -> None:
    """Raise UsageError for a folder or file of the store that is not this user's alone to write.

    `is_shared` lets other owners and rights pass, never links. What is not there is no fault.
    """
    root = layout.root
    if "\0" in str(root):
        raise UsageError(
            "The path of the store contains a NUL character",
            code="store_path",
            hint="set `store` to the path of a folder, existing or new",
        )
    linked = _found(root, follow=False)
    if linked is not None and stat.S_ISLNK(linked.st_mode) and linked.st_uid not in _trusted():
        raise _link(root, "belongs to another user")
    folder = _found(root)
    if folder is None:
        return
    if not is_shared:
        _check_rights(root, folder)
    for path in layout.own_files:
        result = _found(path, follow=False)
        if result is None:
            continue
        if stat.S_ISLNK(result.st_mode):
            raise _link(path, "is in the place of a file of the store")
        if not is_shared:
            _check_rights(path, result)


def _trusted() -> frozenset[int]:
    return frozenset({0, user() or 0})


def _found(path: Path, *, follow: bool = True) -> os.stat_result | None:
    try:
        return path.stat() if follow else path.lstat()
    except FileNotFoundError:
        return None


def _check_rights(path: Path, result: os.stat_result) -> None:
    me = user()
    if me is None:
        return  # access lists in place of owners and modes: whoever made the folder says who may
    if result.st_uid != me:
        raise UsageError(
            f"`{path}` of the store belongs to user {result.st_uid}, but this process runs as user "
            f"{me}",
            code="store_untrusted",
            hint=f"run as its owner, or change the owner with `chown -R {me}`; if the store is "
            "shared on purpose, set IMPCTL_SHARED_STORE=1",
        )
    if result.st_mode & _OTHERS_MAY_WRITE:
        raise UsageError(
            f"other users can write to `{path}` of the store (mode {result.st_mode & 0o7777:04o})",
            code="store_untrusted",
            hint=f"run `chmod go-w {path}`; if the store is shared on purpose, set "
            "IMPCTL_SHARED_STORE=1",
        )


def _link(path: Path, what: str) -> UsageError:
    return UsageError(
        f"The link `{path}` {what}",
        code="store_link",
        hint="check where it points and who created it; then remove it, or give the folder itself",
    )
