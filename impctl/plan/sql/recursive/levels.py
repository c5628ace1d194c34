"""MAX RECURSION LEVEL n behind the name of a WITH entry, which sqlglot does not know.

Law: the clause is read where Spark reads it: four words between the name of an entry (with its
columns) and AS. Everybody else sees blanks in its place, so that all other words stand where they
stood. Out of scope: what the number means (`plan.sql.recursive.clause`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType  # type: ignore[attr-defined]  # re-exported silently

from impctl.plan.sql.places import Place, Tokens
from impctl.values import dataclass

_WORDS = ["MAX", "RECURSION", "LEVEL"]


@dataclass(frozen=True, slots=True)
class Levels:
    """The clause: how many levels there may be, and its place in the text."""

    most: int
    start: int
    end: int


def levels_in(tokens: Sequence[Token]) -> tuple[Levels, ...]:
    """All clauses, wherever they stand, in order."""
    return tuple(_found(tokens))


def _found(tokens: Sequence[Token]) -> Iterator[Levels]:
    for at, number in enumerate(tokens[3:]):
        words = tokens[at : at + 3]
        is_number = number.token_type is TokenType.NUMBER and number.text.isdigit()
        are_words = all(word.token_type is TokenType.VAR for word in words)
        if is_number and are_words and [word.text.upper() for word in words] == _WORDS:
            yield Levels(int(number.text), words[0].start, number.end + 1)


def without_levels(sql: str) -> str:
    """The text of a query that was read, with blanks for all such clauses."""
    if _WORDS[1] not in sql.upper():
        return sql
    for result in levels_in(Spark().tokenize(sql)):
        gone = sql[result.start : result.end]
        blanks = "".join(sign if sign.isspace() else " " for sign in gone)
        sql = sql[: result.start] + blanks + sql[result.end :]
    return sql


def others(tokens: Sequence[Token], clauses: Sequence[Levels]) -> list[Token]:
    """The tokens without those of the clauses."""
    spans = [(one.start, one.end) for one in clauses]
    return [t for t in tokens if not any(start <= t.start < end for start, end in spans)]


def by_entry(
    tree: Any, clauses: Sequence[Levels], words: Tokens, places: Mapping[int, Place]
) -> dict[int, Levels]:
    """The clauses by the `id` of their entries; one that stands elsewhere is not among them."""
    wanted = {words.at(clause.start): clause for clause in clauses}
    result = {}
    for entry in tree.find_all(exp.CTE) if wanted else ():
        name = places.get(id(entry.args["alias"]))
        clause = None if name is None else wanted.get(words.at(name[1]))
        if clause is not None:
            result[id(entry)] = clause
    return result
