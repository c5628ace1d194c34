"""Whether files that commits add are new to the table, and files that they remove were in it.

Law: a change feed takes every row of an added file for inserted and every row of a removed one for
deleted, where a commit has no change data. That is so only where the file was not in the table, or
was; an entry for a file that is there already takes the place of the older one. It is believed of
commits that Spark or an operation of deltalake composed; for others the files are looked up.
Cost: one snapshot, the one at the start, if there are such others.
Out of scope: commits that only move rows (`tables.change.copies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from impctl.tables.commits import Action, Commits, is_of_rows, is_of_spark
from impctl.tables.snapshot import Snapshot
from impctl.tables.storage import file_uri

_OF_DELTALAKE = "delta-rs:"


def files_come_and_go_once(commits: Commits, start: Callable[[], Snapshot]) -> bool:
    """Whether a feed counts no file of these commits twice; `start` is the snapshot before them."""
    if all(map(_is_sure, commits.by_commit())):
        return True
    before = start()
    live = {file.uri for file in before.files}
    for actions in commits.by_commit():
        added = _uris(before.path, actions, "add")
        removed = _uris(before.path, actions, "remove")
        if not _is_sure(actions) and not _is_plain(before.path, actions, live):
            return False
        live = (live - set(removed)) | set(added)
    return True


def _is_sure(actions: Sequence[Action]) -> bool:
    """Whether a commit has change data, moves no file, or says that such an operation wrote it."""
    if any(name == "cdc" for name, _ in actions) or not any(map(is_of_rows, actions)):
        return True
    return is_of_spark(actions) or any(
        name == "commitInfo"
        and str(body.get("engineInfo")).startswith(_OF_DELTALAKE)
        and body.get("operationMetrics")
        for name, body in actions
    )


def _is_plain(path: str, actions: Sequence[Action], live: set[str]) -> bool:
    """Whether each file that the commit feeds is new to the table, or was in it, by one entry."""
    fed = [action for action in actions if is_of_rows(action)]
    quiet = [action for action in actions if not is_of_rows(action)]
    came, went = _uris(path, fed, "add"), _uris(path, fed, "remove")
    moved = {*_uris(path, quiet, "add"), *_uris(path, quiet, "remove")}
    return (
        len({*came}) == len(came)
        and len({*went}) == len(went)
        and live.issuperset(went)
        and live.isdisjoint(came)
        and moved.isdisjoint([*came, *went])
    )


def _uris(path: str, actions: Sequence[Action], wanted: str) -> list[str]:
    return [file_uri(path, body["path"]) for name, body in actions if name == wanted]
