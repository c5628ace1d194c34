"""The social network: all numbers name rows that are there, time goes one way, seeds decide."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from impctl.bench.large_joins.social import FEWEST_MESSAGES, social_tables
from impctl.errors import UsageError


def values(table: pa.Table, name: str) -> Any:
    return table.column(name).to_numpy()


@pytest.mark.parametrize("messages", [FEWEST_MESSAGES, 5000])
def test_all_numbers_name_rows(messages: int) -> None:
    found = social_tables(messages, 1)
    assert len(found["message"]) == messages
    ends = [
        ("knows", "person1", "person"),
        ("knows", "person2", "person"),
        ("message", "creator", "person"),
        ("message_tag", "message", "message"),
        ("message_tag", "tag", "tag"),
    ]
    for table, column, named in ends:
        held = values(found[table], column)
        assert held.min() >= 0
        assert held.max() < len(found[named])
        assert len(set(held.tolist())) > 1
    for table in found.values():
        assert values(table, "id").tolist() == list(range(len(table)))


def test_time_goes_one_way() -> None:
    found = social_tables(5000, 1)
    for table in ("knows", "message", "message_tag"):
        assert (np.diff(values(found[table], "day")) >= 0).all()
    replies = found["message"].column("reply_of").to_pylist()
    assert all(reply is None or reply < at for at, reply in enumerate(replies))
    assert 0.28 < sum(reply is None for reply in replies) / len(replies) < 0.39
    tagged = found["message_tag"]
    assert (
        values(found["message"], "day")[values(tagged, "message")] == values(tagged, "day")
    ).all()
    pairs = set(
        zip(values(tagged, "message").tolist(), values(tagged, "tag").tolist(), strict=True)
    )
    assert len(pairs) == len(tagged)


def test_the_seed_decides() -> None:
    one, again, other = (social_tables(400, seed) for seed in (1, 1, 2))
    assert all(one[name].equals(again[name]) for name in one)
    assert not one["message"].equals(other["message"])


def test_too_few_messages_are_refused() -> None:
    with pytest.raises(UsageError):
        social_tables(FEWEST_MESSAGES - 1, 1)
