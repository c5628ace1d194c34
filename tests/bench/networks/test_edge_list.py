"""Lists of links as people have them, and what is no list told."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from impctl.bench.networks.edge_list import listed_links
from impctl.errors import UsageError


def links_of(table: pa.Table) -> list[tuple[int, int, int]]:
    return list(zip(*(table[name].to_pylist() for name in ("src", "dst", "cost")), strict=True))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# a list\n10 20\n20 30\n10 20\n30 30\n", [(0, 1, 1), (1, 2, 1)]),
        ("src,dst,cost\n1,2,7\n2,1,3\n", [(0, 1, 7), (1, 0, 3)]),
        ("5\t3\t2\t99\n\n3\t5\t4\t1\n", [(1, 0, 2), (0, 1, 4)]),
        ("% konect\nb a\na c\n", [(1, 0, 1), (0, 2, 1)]),
        ("9 10\n10 9\n", [(0, 1, 1), (1, 0, 1)]),
        ("a 9\n9 10\n", [(2, 1, 1), (1, 0, 1)]),
        ("1 2\n1 2 5\n", [(0, 1, 1)]),
        ("1, 2\n2, 3\n", [(0, 1, 1), (1, 2, 1)]),
        ("\ufeffid;to;km\r\n1;2;7\r\n", [(0, 1, 7)]),
        ("source,target\nann lee,bob\nbob,cy\n", [(0, 1, 1), (1, 2, 1)]),
        ('"from","to"\n"a","b"\n', [(0, 1, 1)]),
        ("# FromNodeId\tToNodeId\n3\t1\n1\t 2\n", [(2, 0, 1), (0, 1, 1)]),
    ],
)
def test_text(text: str, expected: list[tuple[int, int, int]], tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    table = listed_links(file)
    assert links_of(table) == expected
    assert table["id"].to_pylist() == list(range(len(expected)))
    assert all(kind == pa.int64() for kind in table.schema.types)


def test_parquet(tmp_path: Path) -> None:
    file = tmp_path / "links.parquet"
    columns = {"a": [7, 8, 7], "b": [8, 9, 8], "c": [2, 3, 2]}
    pq.write_table(pa.table(columns), file)
    assert links_of(listed_links(file)) == [(0, 1, 2), (1, 2, 3)]
    pq.write_table(pa.table({**columns, "c": [0.5, 0.5, 0.5]}), file)
    assert links_of(listed_links(file)) == [(0, 1, 1), (1, 2, 1)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no line with a link"),
        ("# 1 2\n", "no line with a link"),
        ("1\n2\n", "line 1 has fewer than two columns"),
        ("# a list\n1,2\n\n3\n", "line 4 has fewer than two columns"),
        ("1 1\n", "no link between two nodes"),
        ("1 2 3\n1 2 0\n", "line 2 has a cost that is no number above 0: 0"),
        ("1 2 x\n", "line 1 has a cost that is no number above 0: x"),
        ("1 2 -4\n", "no number above 0: -4"),
        ("1 2 0.5\n", "no number above 0: 0.5"),
        ("1 2 99999999999999999999\n", "no number above 0"),
    ],
)
def test_what_is_no_list(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        listed_links(file)


@pytest.mark.parametrize(("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_packed_text(ending: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    file = tmp_path / f"links.txt{ending}"
    file.write_bytes(pack(b"# packed\n1 2\n2 1\n"))
    assert links_of(listed_links(file)) == [(0, 1, 1), (1, 0, 1)]
    file.write_bytes(b"1 2\n")
    with pytest.raises(UsageError, match="cannot be unpacked"):
        listed_links(file)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        listed_links(tmp_path / "none.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 1\n")
    with pytest.raises(UsageError, match="cannot be read as text"):
        listed_links(tmp_path / "latin.txt")
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="No list of links"):
        listed_links(tmp_path / "broken.parquet")
    pq.write_table(pa.table({"a": [1, None], "b": [2, 3]}), tmp_path / "gap.parquet")
    with pytest.raises(UsageError, match="NULL"):
        listed_links(tmp_path / "gap.parquet")
