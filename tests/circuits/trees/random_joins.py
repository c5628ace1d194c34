"""Random queries over joins: paths, stars, circles, other joins, groups and conditions on them.

Law: a seed is one query and its tables, over few values, NULL among them, with duplicates and rows
without partners. Out of scope: what is done with them (`test_rejoined`).
"""

from __future__ import annotations

from random import Random

from tests.circuits.trees.drawn import CATALOG
from tests.support.reference_plan import Tables

COLUMNS = "abci"
NAMES = (None, "", "u", "v")
TABLES = tuple(CATALOG)
_MAX_ROWS = 5


def random_tables(rng: Random) -> Tables:
    """Few rows of few values, text among them; columns that no query reads are NULL."""
    nothing = {column.name: None for column in CATALOG["r"]}
    values = rng.choice(((None, 0, 1, 1, 2), (None, 1, 1, 1, 2), (1, 1, 1, 0)))

    def row() -> dict[str, int | str | None]:
        numbers = {name: rng.choice(values) for name in COLUMNS}
        return {**nothing, **numbers, "name": rng.choice(NAMES)}

    return {name: [row() for _ in range(rng.randint(1, _MAX_ROWS))] for name in TABLES}


class JoinMaker:
    """Writes one query."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.made = 0

    def sql(self) -> str:
        """A query of two to five relations."""
        rng = self.rng
        names = [self._alias() for _ in range(rng.randint(1, 4))]
        source = self._joined(names, left=0.2)
        where = [self._extra(names) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        where += [self._exists(names) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
        if len(names) == 1 and not where:
            where = [self._exists(names)]
        text = f" FROM {source}" + (f" WHERE {' AND '.join(where)}" if where else "")
        keys = [self._key(names) for _ in range(rng.choice((0, 1, 1, 1, 2)))]
        if rng.random() < 0.15:
            return f"SELECT {self._column(names)} AS x{text}"
        group = f" GROUP BY {', '.join(keys)}" if keys else ""
        having = "" if rng.random() < 0.1 else f" HAVING {self._having(names)}"
        return f"SELECT COUNT(*) AS n{text}{group}{having}"

    def _alias(self) -> tuple[str, str]:
        self.made += 1
        return self.rng.choice(TABLES), f"x{self.made}"

    def _joined(self, names: list[tuple[str, str]], *, left: float) -> str:
        (table, alias), *others = names
        text = f"{table} {alias}"
        seen = [(table, alias)]
        for one in others:
            kind = "LEFT JOIN" if self.rng.random() < left else "JOIN"
            count = self.rng.choice((0, 1, 1, 1, 1, 2)) if kind == "JOIN" else 1
            parts = [self._equality(seen, [one]) for _ in range(count)]
            text += f" {kind} {one[0]} {one[1]} ON {' AND '.join(parts) or 'true'}"
            if kind == "LEFT JOIN" and self.rng.random() < 0.3:
                text += f" AND {one[1]}.c > 0"
            seen.append(one)
        return text

    def _equality(self, left: list[tuple[str, str]], right: list[tuple[str, str]]) -> str:
        one, other = self._column(left), self._column(right)
        if self.rng.random() < 0.05:
            one = f"{one} + 1"
        return f"{one} {'<=>' if self.rng.random() < 0.15 else '='} {other}"

    def _extra(self, names: list[tuple[str, str]]) -> str:
        one, other = self._column(names), self._column(names)
        draw = self.rng.random()
        if draw < 0.5:
            return f"{one} = {other}"
        if draw < 0.7:
            return f"{one} < {other}"
        if draw < 0.8:
            return f"{one} IS NULL"
        if draw < 0.9:
            return f"({one} = 1 OR {other} = 2)"
        return f"{one} >= 1"

    def _exists(self, names: list[tuple[str, str]]) -> str:
        below = [self._alias() for _ in range(self.rng.choice((1, 1, 2, 3)))]
        on = [self._equality(names, below) for _ in range(self.rng.choice((0, 1, 1, 1, 2)))]
        if self.rng.random() < 0.3:
            on.append(f"{self._column(below)} >= 1")
        if self.rng.random() < 0.1:
            on.append(f"{self._column(below)} < {self._column(names)}")
        source = self._joined(below, left=0.1)
        where = f" WHERE {' AND '.join(on)}" if on else ""
        if self.rng.random() < 0.15:
            negated = self.rng.choice(("", "NOT "))
            return f"{self._column(names)} {negated}IN (SELECT {self._column(below)} FROM {source})"
        negated = "NOT " if self.rng.random() < 0.4 else ""
        return f"{negated}EXISTS (SELECT 1 FROM {source}{where})"

    def _key(self, names: list[tuple[str, str]]) -> str:
        column = self._column(names)
        return f"{column} + {self._column(names)}" if self.rng.random() < 0.1 else column

    def _having(self, names: list[tuple[str, str]]) -> str:
        if self.rng.random() < 0.25:
            return self._first(names)
        column = self._column(names)
        calls = (
            "COUNT(*)",
            f"COUNT({column})",
            f"SUM({column})",
            f"SUM({column})",
            f"SUM({column} * {column})",
            f"SUM(COALESCE({column}, 1))",
            f"COUNT(DISTINCT {column})",
            f"SUM(DISTINCT {column})",
            f"COUNT(DISTINCT {column}) FILTER (WHERE {column} >= 1)",
            f"MAX({column})",
            "SUM(1)",
            f"SUM({column}) FILTER (WHERE {self._column(names)} >= 1)",
            f"SUM({column} + {self._column(names)})",
        )
        op = self.rng.choice((">", ">", ">=", "<", "="))
        limit = self.rng.choice((0, 1, 2, 3, 8) if op in (">", ">=") else (1, 4, 9, 20, 50))
        return f"{self.rng.choice(calls)} {op} {limit}"

    def _first(self, names: list[tuple[str, str]]) -> str:
        """A condition on a value that an order finds."""
        column, other = self._column(names), self._column(names)
        if self.rng.random() < 0.5:
            # Columns of one relation, which may be the one that is grouped by.
            other = f"{column.partition('.')[0]}.{self.rng.choice(COLUMNS)}"
        name = f"{column.partition('.')[0]}.name"
        given = f" FILTER (WHERE {other} >= 1)" if self.rng.random() < 0.2 else ""
        call = self.rng.choice(("MIN", "MAX"))
        text = self.rng.choice(("> ''", "< 'v'", "= 'u'", ">= 'v'", "IS NULL"))
        number = self.rng.choice(("> 0", "= 1", "< 2", "IS NULL", "<> 1"))
        return self.rng.choice(
            (
                f"{call}({name}){given} {text}",
                f"{call}({name}){given} {text} AND COUNT({name}) > 1",
                f"{call}_BY({name}, {column}){given} {text}",
                f"{call}_BY({column}, {other}){given} {number}",
                f"{call}_BY({column}, {name}){given} {number}",
                f"{call}_BY({column}, {name}){given} {number} AND {call}({name}) {text}",
                f"{call}_BY({column}, {other}) {number} OR SUM({column}) > 3",
            )
        )

    def _column(self, names: list[tuple[str, str]]) -> str:
        return f"{self.rng.choice(names)[1]}.{self.rng.choice(COLUMNS)}"
