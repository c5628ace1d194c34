"""Random queries over joins whose rows are asked for with their values, and tables for them.

Law: a seed is one query and its tables; text and doubles are among the columns, 0.0 and -0.0, NaN
and NULL among the values, rows occur twice. Out of scope: what is done with them (`test_answers`).
"""

from __future__ import annotations

import math
from random import Random

from tests.circuits.trees.random_joins import JoinMaker, random_tables
from tests.support.reference_plan import Tables

OTHER = ("name", "rate")


def tables_with_values(rng: Random) -> Tables:
    """Few rows, with text and doubles."""
    result = random_tables(rng)
    for rows in result.values():
        for row in rows:
            row["name"] = rng.choice((None, "", "u", "v"))
            row["rate"] = rng.choice((None, 0.0, -0.0, 1.5, math.nan))
    return result


class AnswerMaker(JoinMaker):
    """Writes one query whose answer is to be kept."""

    def sql(self) -> str:
        rng = self.rng
        if rng.random() < 0.1:
            kind = rng.choice(("UNION", "UNION ALL"))
            return f"{self._branch(1)} {kind} {self._branch(1)}"
        return self._branch(rng.choice((0, 1, 2, 3)), is_whole=True)

    def _branch(self, columns: int, *, is_whole: bool = False) -> str:
        rng = self.rng
        names = [self._alias() for _ in range(rng.choice((1, 2, 2, 2, 3, 3, 4)))]
        source = self._joined(names, left=0.25)
        where = [self._extra(names) for _ in range(rng.choice((0, 0, 0, 0, 1)))]
        where += [self._exists(names) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        if len(names) == 1 and not where:
            where = [self._exists(names)]
        text = f" FROM {source}" + (f" WHERE {' AND '.join(where)}" if where else "")
        if is_whole and rng.random() < 0.4:
            return self._grouped(names, text, columns)
        shown = [self._shown(names) for _ in range(max(1, columns))]
        listed = ", ".join(f"{one} AS x{at}" for at, one in enumerate(shown))
        return f"SELECT {'DISTINCT ' if rng.random() < 0.2 else ''}{listed}{text}"

    def _shown(self, names: list[tuple[str, str]]) -> str:
        draw, column = self.rng.random(), self._column(names)
        if draw > 0.75:
            return self._other(names)
        if draw < 0.15:
            return f"COALESCE({column}, 7)"
        if draw < 0.3:
            return f"{column} + {self._column(names)}"
        if draw < 0.32:
            return "1"
        return column

    def _grouped(self, names: list[tuple[str, str]], text: str, keys: int) -> str:
        rng = self.rng
        keyed = [
            self._other(names) if rng.random() < 0.2 else self._column(names) for _ in range(keys)
        ]
        calls = [self._call(names) for _ in range(rng.choice((1, 1, 2)))]
        listed = [*keyed, *calls]
        named = ", ".join(f"{one} AS x{at}" for at, one in enumerate(listed))
        group = f" GROUP BY {', '.join(keyed)}" if keyed else ""
        having = f" HAVING {self._having(names)}" if rng.random() < 0.5 else ""
        order = ""
        if rng.random() < 0.4:
            places = rng.sample(range(len(listed)), len(listed))
            keys_ = [f"{at + 1}{rng.choice(('', ' DESC'))}" for at in places]
            order = f" ORDER BY {', '.join(keys_)}" + rng.choice(
                ("", " LIMIT 1", " LIMIT 2", " LIMIT 2 OFFSET 1")
            )
        return f"SELECT {named}{text}{group}{having}{order}"

    def _call(self, names: list[tuple[str, str]]) -> str:
        column = self._column(names)
        return self.rng.choice(
            (
                "COUNT(*)",
                f"SUM({column})",
                f"AVG({column})",
                f"MAX({column})",
                f"COUNT(DISTINCT {column})",
                f"SUM(DISTINCT {column})",
                f"COUNT(DISTINCT {self._other(names)})",
                f"SUM({column}) FILTER (WHERE {column} >= 1)",
                f"MIN({self.rng.choice(names)[1]}.name)",
                f"MAX({self.rng.choice(names)[1]}.name)",
                f"SUM({self.rng.choice(names)[1]}.i * 0.5D)",
            )
        )

    def _other(self, names: list[tuple[str, str]]) -> str:
        return f"{self.rng.choice(names)[1]}.{self.rng.choice(OTHER)}"

    def _equality(self, left: list[tuple[str, str]], right: list[tuple[str, str]]) -> str:
        if self.rng.random() > 0.1:
            return super()._equality(left, right)
        column = self.rng.choice(OTHER)
        op = self.rng.choice(("=", "=", "<=>"))
        return f"{self.rng.choice(left)[1]}.{column} {op} {self.rng.choice(right)[1]}.{column}"
