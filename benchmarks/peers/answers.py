"""A program's answer from its facts, by rounds until nothing new comes: what all schemes must give.

Law: rows are derived from facts and rows alone, no provenance, no peers; with aggregates, rows that
are beaten derive nothing.
Out of scope: changes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from benchmarks.peers.programs import Fact, Program, Row


def answer_of(program: Program, facts: Iterable[Fact]) -> frozenset[Row]:
    """The answer over these facts; it never ends where rows without bound are asked for."""
    met = defaultdict(list)
    groups: dict[Row, set[Row]] = defaultdict(set)
    fresh: set[Row] = set()
    for fact in set(facts):
        met[program.meets(fact)].append(fact)
        fresh.update(program.bases(fact))
    while fresh:
        for row in fresh:
            groups[program.group(row)].add(row)
        result: set[Row] = set()
        for row in fresh:
            if not program.prunes or row in program.best(groups[program.group(row)]):
                result.update(head for fact in met[row[0]] for head in program.heads(fact, row))
        fresh = {row for row in result if row not in groups[program.group(row)]}
    return program.answer(row for rows in groups.values() for row in rows)
