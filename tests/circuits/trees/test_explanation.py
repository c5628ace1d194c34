"""A tree in words, whole; and where a tuple tells the fragment of a row."""

from __future__ import annotations

from impctl.compile.jointree.graph import TreeShape
from impctl.compile.jointree.shape import TreeEntry, tree_entry, tree_lines
from tests.circuits.trees.drawn import shape_of


def entry(sql: str, **sketched: str) -> TreeEntry:
    shape = shape_of(sql)
    assert isinstance(shape, TreeShape)
    return tree_entry(shape, {f"{table}#1": column for table, column in sketched.items()})


def lines(sql: str, **sketched: str) -> str:
    return "\n".join(tree_lines(entry(sql, **sketched)))


def ranges(sql: str, **sketched: str) -> dict[tuple[str, ...], list[str]]:
    tree = entry(sql, **sketched)
    return {node.bag: [how for _, how in node.ranges] for node in tree.nodes if node.ranges}


def test_a_virtual_root_is_its_columns() -> None:
    sql = "SELECT r.a FROM s JOIN r ON s.a = r.a GROUP BY r.a HAVING SUM(s.b) > 100"
    assert lines(sql, s="c", r="a") == (
        "[a]  groups\n"
        "|- s  inner on a  keeps a, sum(b); ranges of c counted\n"
        "'- r  inner on a  keeps a; ranges of a by column"
    )


def test_nodes_stand_below_their_parents() -> None:
    sql = (
        "SELECT r.d FROM r JOIN s ON r.a = s.a LEFT JOIN u ON u.c = r.c "
        "WHERE NOT EXISTS (SELECT 1 FROM t JOIN v ON t.b <=> v.b WHERE t.a = s.c) "
        "GROUP BY r.d HAVING COUNT(u.b) > 2"
    )
    assert lines(sql) == (
        "r  groups by d  keeps a, c, d\n"
        "|- s  inner on a  keeps a, c\n"
        "|  '- t  anti on a  keeps b, a\n"
        "|     '- v  inner on b  keeps b\n"
        "'- u  left on c  keeps c, count(b)"
    )
    tree = entry(sql)
    assert (tree.mode, tree.height) == ("ring", 3)
    assert [node.parent for node in tree.nodes] == [None, 0, 1, 2, 0]
    assert [node.edge for node in tree.nodes] == ["", "inner", "anti", "inner", "left"]


def test_without_groups_there_is_a_root_or_one_group() -> None:
    assert lines("SELECT r.d FROM r CROSS JOIN s", r="d") == (
        "r  root; ranges of d counted\n'- s  inner on nothing"
    )
    one = "SELECT COUNT(*) FROM r JOIN s ON r.a = s.a HAVING COUNT(*) > 3"
    assert lines(one).startswith("r  one group  keeps a\n")


def test_a_kept_column_tells_the_range_of_its_own_access_only() -> None:
    sql = "SELECT r.d FROM r JOIN s ON r.a = s.a JOIN t ON t.b = r.b"
    assert ranges(sql, r="a", s="a", t="d") == {
        ("r",): ["by column"],
        ("s",): ["by column"],
        ("t",): ["counted"],
    }
    bag = "SELECT r.d FROM r JOIN s ON r.c < s.c JOIN t ON t.b = r.b AND t.a = s.a"
    assert ranges(bag, r="b", s="a") == {("r", "s"): ["by column", "by column"]}
    assert ranges(bag, r="a", s="b") == {("r", "s"): ["counted", "counted"]}


def test_a_padded_or_grouped_side_is_counted() -> None:
    """A padded row has NULL in the column and no row of the table; a group has rows of several."""
    padded = "SELECT 1 FROM r LEFT JOIN s ON r.a = s.a JOIN t ON t.b <=> s.b"
    assert ranges(padded, r="a", s="b") == {("r", "s"): ["counted", "counted"]}
    grouped = "SELECT 1 FROM (SELECT a, COUNT(*) AS n FROM r GROUP BY a) q JOIN t ON t.a = q.a"
    assert ranges(grouped, r="a") == {("r",): ["counted"]}
    semi = (
        "SELECT 1 FROM r JOIN t ON t.a = r.a WHERE EXISTS "
        "(SELECT 1 FROM s WHERE s.a = r.a AND s.b < r.b)"
    )
    assert ranges(semi, r="a", s="a") == {("r", "s"): ["by column", "counted"]}
