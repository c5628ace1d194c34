"""What the last choice of state was made by, as the one row of its table.

Law: it only ever saves a choice from being made anew: a row that does not match its seal, or that
impctl did not write, is as none.
Out of scope: the choice (`app.maintaining.keeping`).
"""

from __future__ import annotations

import json
import math
import sqlite3

from impctl.store.records import Chosen
from impctl.store.seals import seal_of

_PLACE = 1


def load_chosen(connection: sqlite3.Connection) -> Chosen | None:
    """What is remembered; None for nothing."""
    row = connection.execute("SELECT * FROM state_choice WHERE place = ?", (_PLACE,)).fetchone()
    if row is None or seal_of(*row[:-1]) != row[-1]:
        return None
    try:
        told = json.loads(row[1])
        rates = {tuple(map(str, tables)): _rate(rate) for tables, rate in told["rates"]}
        pins = {str(query): str(state) for query, state in told["pins"].items()}
        return Chosen(
            budget=int(told["budget"]),
            rates=rates,
            bytes=int(told["bytes"]),
            pins=pins,
            least=int(told["least"]),
            settled=bool(told["settled"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def save_chosen(connection: sqlite3.Connection, chosen: Chosen | None) -> None:
    """Remember this in place of what was; None forgets it."""
    connection.execute("DELETE FROM state_choice")
    if chosen is None:
        return
    told = {
        "budget": chosen.budget,
        "rates": [[list(tables), rate] for tables, rate in chosen.rates.items()],
        "bytes": chosen.bytes,
        "pins": dict(chosen.pins),
        "least": chosen.least,
        "settled": chosen.settled,
    }
    values = (_PLACE, json.dumps(told))
    connection.execute("INSERT INTO state_choice VALUES (?, ?, ?)", (*values, seal_of(*values)))


def _rate(value: object) -> float:
    if type(value) not in (int, float) or not math.isfinite(float(str(value))):
        raise ValueError("not a rate")
    return float(str(value))
