"""Lists of links as people have them, and what is no list told."""

from __future__ import annotations

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
        ("", "fewer than two columns"),
        ("1\n2\n", "fewer than two columns"),
        ("1 1\n", "no link between two nodes"),
        ("1 2 0\n", "not above 0"),
        ("1 2 x\n", "other costs"),
    ],
)
def test_what_is_no_list(text: str, says: str, tmp_path: Path) -> None:
    file = tmp_path / "links.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=says):
        listed_links(file)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        listed_links(tmp_path / "none.txt")
    (tmp_path / "broken.parquet").write_bytes(b"nothing")
    with pytest.raises(UsageError, match="No list of links"):
        listed_links(tmp_path / "broken.parquet")
    pq.write_table(pa.table({"a": [1, None], "b": [2, 3]}), tmp_path / "gap.parquet")
    with pytest.raises(UsageError, match="NULL"):
        listed_links(tmp_path / "gap.parquet")
