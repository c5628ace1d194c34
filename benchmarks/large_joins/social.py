"""A small social network: who knows whom, who wrote what, and which tags it has.

In the shape of the LDBC social network, with far fewer columns: `person` (`id`, `name`), `knows`
(`id`, `person1`, `person2`, `circle`, `day`), `message` (`id`, `creator`, `reply_of`, `day`),
`message_tag` (`id`, `message`, `tag`, `day`), `tag` (`id`, `name`). Acquaintances, messages and
tags follow power laws; `circle` is a number below 100 of the first person; a third of the messages
answer none, and have NULL there. Rows lie in the order of their days, as which `id` goes: what is
oldest goes first where a window moves.

Law: equal arguments give equal rows; every number names a row that is there, a reply answers an
older message. Out of scope: writing the tables (`tables`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.large_joins.power_law import USUAL_EXPONENT, pairs_of_ranks, ranks
from impctl.errors import UsageError

Integers = npt.NDArray[np.int64]

DAYS = 1000
CIRCLES = 100
FEWEST_MESSAGES = 200

_MESSAGES_EACH = 20
_ACQUAINTANCES = 8
_TAGS_OF_EACH = 1.2
_MESSAGES_OF_TAG = 100
_ANSWERED = 2.0 / 3.0


def social_tables(messages: int, seed: int) -> Mapping[str, pa.Table]:
    """The five tables by name, for so many messages; whole numbers have 64 bits."""
    if messages < FEWEST_MESSAGES:
        raise UsageError(
            f"{messages} messages are too few for a network",
            hint=f"ask for at least {FEWEST_MESSAGES} rows",
        )
    random = np.random.default_rng(seed)
    persons = messages // _MESSAGES_EACH
    tags = max(messages // _MESSAGES_OF_TAG, 2)
    days = _days(messages, random)
    tagged = _tagged(messages, tags, random)
    return {
        "person": _named("person", persons),
        "knows": _knows(persons, random),
        "message": _messages(persons, days, random),
        "message_tag": _table(message=tagged // tags, tag=tagged % tags, day=days[tagged // tags]),
        "tag": _named("tag", tags),
    }


def _days(size: int, random: np.random.Generator) -> Integers:
    days: Integers = np.sort(random.integers(0, DAYS, size, dtype=np.int64))
    return days


def _knows(persons: int, random: np.random.Generator) -> pa.Table:
    edges = min(persons * _ACQUAINTANCES, persons * (persons - 1) // 4)
    pairs = pairs_of_ranks(edges, persons, USUAL_EXPONENT, random)
    numbers = random.permutation(persons)
    circle = random.integers(0, CIRCLES, persons, dtype=np.int64)
    return _table(
        person1=numbers[pairs // persons],
        circle=circle[numbers[pairs // persons]],
        person2=numbers[pairs % persons],
        day=_days(edges, random),
    )


def _messages(persons: int, days: Integers, random: np.random.Generator) -> pa.Table:
    size = len(days)
    numbers = random.permutation(persons)
    creator = numbers[ranks(size, persons, USUAL_EXPONENT, random)]
    older = (random.random(size) * np.arange(size)).astype(np.int64)
    is_first = random.random(size) >= _ANSWERED
    is_first[0] = True
    table = _table(creator=creator, reply_of=older, day=days)
    return table.set_column(2, "reply_of", pa.array(older, mask=is_first))


def _tagged(messages: int, tags: int, random: np.random.Generator) -> Integers:
    """Different pairs `message * tags + tag`, by message."""
    size = round(messages * _TAGS_OF_EACH)
    message = random.integers(0, messages, size, dtype=np.int64)
    tag = random.permutation(tags)[ranks(size, tags, USUAL_EXPONENT, random)]
    return np.unique(message * tags + tag)


def _named(kind: str, size: int) -> pa.Table:
    names = [f"{kind} {number}" for number in range(size)]  # as many as there are, a few thousand
    return pa.table({"id": pa.array(np.arange(size, dtype=np.int64)), "name": pa.array(names)})


def _table(**columns: Integers) -> pa.Table:
    size = len(next(iter(columns.values())))
    every = {"id": np.arange(size, dtype=np.int64), **columns}
    return pa.table({name: pa.array(values) for name, values in every.items()})
