"""What deltalake may be asked to open of a table's deletion vectors.

Law: a vector lies below one of the table's folders, and no position in it is 2^32 or more.
deltalake makes a mask as long as the greatest position, and ends the process where memory does not
suffice. A vector that the log places elsewhere it would fetch from there.
Cost: the log's entries after its last checkpoint, two columns of that, 20 bytes of each vector.
Out of scope: the positions (deltalake reads them).
"""

from __future__ import annotations

import json
import os
import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from impctl.errors import TableError
from impctl.tables.storage import (
    below_root,
    file_uri,
    list_names,
    local_path,
    object_store,
    read_range,
    read_text,
)
from impctl.types import TableName, TableVersion

_LOG = "_delta_log"
_ENTRY = re.compile(r"(\d{20})\.json")
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)"
)
"""One file, one of several parts, or the top of one with side files (V2, which a UUID names)."""
_SIDE_FILES = f"{_LOG}/_sidecars"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
"""Those of Z85: five for four bytes."""
_UUID_LENGTH = 20
_MARK = 1_681_511_377
_HEAD = struct.Struct("<IqI")
"""How the bitmaps of a vector begin: a mark, how many there are, and the upper half of the
positions in the first one."""


def vector_files(
    path: str, version: TableVersion, options: Mapping[str, str] | None
) -> Iterator[Mapping[str, Any]]:
    """The deletion vectors of a version, as its log describes them."""
    names = list_names(path, options, _LOG)
    start, parts = _last_checkpoint(names, version)
    result: dict[str, Any] = {}
    for name in parts:
        result.update(_of_checkpoint(path, options, f"{_LOG}/{name}"))
    entries = (match for match in map(_ENTRY.fullmatch, sorted(names)) if match is not None)
    for entry in entries:
        if start < int(entry[1]) <= version:
            result.update(_of_entry(read_text(path, options, f"{_LOG}/{entry[0]}")))
    return (vector for vector in result.values() if vector is not None)


def check_vectors(
    table: TableName,
    roots: Sequence[str],
    vectors: Iterable[Mapping[str, Any]],
    options: Mapping[str, str] | None,
) -> None:
    """TableError where deltalake must not open one of these; `roots` as in `Snapshot`."""
    for vector in vectors:
        kind, where = vector.get("storageType"), str(vector.get("pathOrInlineDv"))
        if kind == "i":
            head = _bytes(where[: _HEAD.size // 4 * 5])
        else:
            places = ((root, below_root(root, file_uri(root, where))) for root in roots)
            inside = [(root, name) for root, name in places if name is not None]
            if kind != "p":
                inside = [(roots[0], _name(where))]
            if not inside:
                raise TableError(
                    f"The log of table `{table}` lists a deletion vector outside the table's "
                    f"folder: {where}",
                    hint="check who writes to the table; purge its deletion vectors with Spark"
                    " (`REORG TABLE ... APPLY (PURGE)`)",
                    code="file_outside_table",
                )
            # Before the bitmaps of a file lies their length.
            start = int(vector.get("offset") or 0) + 4
            head = read_range(inside[0][0], options, inside[0][1], start, _HEAD.size)
        if len(head) < _HEAD.size:
            continue  # no vector with a position, or none at all, which deltalake says
        mark, count, upper = _HEAD.unpack(head[: _HEAD.size])
        if mark == _MARK and (count > 1 or (count == 1 and upper)):
            raise TableError(
                f"A deletion vector of table `{table}` deletes rows that are not in its file",
                hint="the table is damaged: restore an earlier version (RESTORE in Spark)",
                code="deletion_vectors_unmatched",
            )


def _last_checkpoint(names: Sequence[str], version: TableVersion) -> tuple[TableVersion, list[str]]:
    """The version of the newest whole checkpoint that is not too new, and its files."""
    result: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        if int(match[1]) <= version:
            result.setdefault((int(match[1]), int(match[2] or 1)), []).append(match[0])
    # Several checkpoints of one version, each in one file, all say the same.
    whole = {key: files[: key[1]] for key, files in result.items() if len(files) >= key[1]}
    return (max(whole)[0], whole[max(whole)]) if whole else (-1, [])


def _of_checkpoint(
    path: str, options: Mapping[str, str] | None, name: str
) -> Iterator[tuple[str, Any]]:
    """The vectors in a file of a checkpoint, by the path of their data file."""
    if name.endswith(".json"):
        text = read_text(path, options, name)
        yield from _of_entry(text)
        side_files = [action["sidecar"]["path"] for action in _actions(text, "sidecar")]
    else:
        adds, side_files = _read_checkpoint(path, options, name)
        for add in adds:
            vector = add.get("deletionVector")
            if vector is not None and vector.get("storageType"):
                yield add["path"], vector
    for side_file in side_files:
        if "/" in side_file:
            raise TableError(
                f"A checkpoint of the table at {path} refers to a sidecar file outside its folder: "
                f"{side_file}",
                hint="check who writes to the table; a new checkpoint refers to new sidecar files",
                code="file_outside_table",
            )
        yield from _of_checkpoint(path, options, f"{_SIDE_FILES}/{side_file}")


def _read_checkpoint(
    path: str, options: Mapping[str, str] | None, name: str
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The added files and the names of side files in a checkpoint of Parquet."""
    import pyarrow.parquet as pq

    folder = local_path(path)
    store = object_store(path, options) if folder is None else None
    place = name if folder is None else os.path.join(folder, name)
    wanted = ("add.path", "add.deletionVector", "sidecar.path")
    with pq.ParquetFile(place, filesystem=store) as file:
        kinds = set(file.schema_arrow.names)
        table = file.read(columns=[each for each in wanted if each.partition(".")[0] in kinds])
    result = {
        kind: [row for row in table.column(kind).to_pylist() if row is not None]
        for kind in ("add", "sidecar")
        if kind in kinds
    }
    side_files = [row["path"] for row in result.get("sidecar", []) if row.get("path")]
    return [row for row in result.get("add", []) if row.get("path")], side_files


def _of_entry(text: str) -> Iterator[tuple[str, Any]]:
    for action in _actions(text, "add", "remove"):
        for kind in ("remove", "add"):
            if isinstance(body := action.get(kind), dict):
                vector = body.get("deletionVector") if kind == "add" else None
                yield str(body.get("path")), vector if isinstance(vector, dict) else None


def _actions(text: str, *kinds: str) -> Iterator[Mapping[str, Any]]:
    """The actions of a text of lines that are of one of these kinds."""
    for line in text.split("\n"):
        if any(f'"{kind}"' in line for kind in kinds):
            action = json.loads(line)
            if isinstance(action, dict) and any(kind in action for kind in kinds):
                yield action


def _bytes(digits: str) -> bytes:
    """What a text in Z85 stands for."""
    result = b""
    for at in range(0, len(digits) - 4, 5):
        value = 0
        for digit in digits[at : at + 5]:
            value = value * 85 + _DIGITS.index(digit)
        result += value.to_bytes(4, "big")
    return result


def _name(where: str) -> str:
    """The path below the table's root of a file that is named by a prefix and an identifier."""
    prefix, identifier = where[:-_UUID_LENGTH], uuid.UUID(bytes=_bytes(where[-_UUID_LENGTH:]))
    return f"{prefix}/deletion_vector_{identifier}.bin".lstrip("/")
