"""Texts as BI tools and dbt compile them for Spark and Databricks, and the tables they read.

The files in `texts` hold what the tools send: quoting, names of parts, nested SELECTs and comments
are theirs; the questions are one shop's.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import yaml

from impctl.tables.write.maintenance import create_table

TEXTS = Path(__file__).parent / "texts"
_NAME = re.compile(r"^-- (\w+)\n", re.MULTILINE)
_WHOLE = re.compile(r"(?:`?main`?\.)?`?shop`?\.`?(sales|customers)`?")
REGIONS = ("north", "east", "south", "west", None)
PARTITIONS = {
    "sales": {
        "product": {"boundaries": [f"p{n:02}" for n in range(1, 12)]},
        "sold_on": {"boundaries": [f"2026-{month:02}-01" for month in range(2, 7)]},
        "qty": {"boundaries": list(range(1, 11))},
        "id": {"boundaries": list(range(40, 400, 40))},
        "region": {"boundaries": ["east", "north", "south", "west"]},
        "sold_at": {"boundaries": [f"2026-{month:02}-01 00:00:00" for month in range(2, 7)]},
    },
    "customers": {"segment": {"boundaries": ["b", "c"]}},
}


@dataclass(frozen=True)
class BiText:
    """What a tool sends, called by the tool and the question."""

    name: str
    sql: str

    @property
    def bare(self) -> str:
        """The same with the tables called as people call them in a workload file."""
        return _WHOLE.sub(lambda result: result[1], self.sql)


def bi_texts() -> Iterator[BiText]:
    """All texts, by tool."""
    for file in sorted(TEXTS.glob("*.sql")):
        parts = _NAME.split(file.read_text(encoding="utf-8"))
        for question, text in zip(parts[1::2], parts[2::2], strict=True):
            yield BiText(f"{file.stem}_{question}", text.rstrip().removesuffix(";"))


def sales(rows: int = 400) -> pa.Table:
    """Sales of half a year; every product has its own months, so that sketches leave ranges out."""
    chance = random.Random(18)
    result = []
    for number in range(rows):
        product = number % 12
        day = chance.randrange(product * 13, product * 13 + 20)
        at = datetime(2026, 1, 1) + timedelta(days=day, minutes=chance.randrange(1440))
        result.append(
            {
                "id": number,
                "sold_at": at,
                "sold_on": at.date(),
                "region": chance.choice(REGIONS),
                "product": f"p{product:02}",
                "customer_id": chance.choice((None, *range(20))),
                "qty": chance.randrange(1, 6) + (product > 7) * 3,
                "price": Decimal(chance.randrange(100, 9999)) / 100,
            }
        )
    types = {
        "id": pa.int64(),
        "sold_at": pa.timestamp("us", "UTC"),
        "sold_on": pa.date32(),
        "region": pa.string(),
        "product": pa.string(),
        "customer_id": pa.int64(),
        "qty": pa.int32(),
        "price": pa.decimal128(10, 2),
    }
    return pa.Table.from_pylist(result, schema=pa.schema(list(types.items())))


def customers() -> pa.Table:
    """Customers of four segments; some sales are of none of them."""
    rows = [{"customer_id": n, "name": f"n{n}", "segment": "abcd"[n % 4]} for n in range(18)]
    return pa.Table.from_pylist(rows)


def write_shop(folder: Path, queries: dict[str, str]) -> Path:
    """The tables and a workload file with these queries."""
    create_table(str(folder / "sales"), sales())
    create_table(str(folder / "customers"), customers())
    document = {
        "version": 1,
        "catalog": "main",
        "schema": "shop",
        "tables": {name: {"path": name} for name in ("sales", "customers")},
        "partitions": PARTITIONS,
        "queries": {name: {"sql": sql} for name, sql in queries.items()},
        "spark": {"master": "local[2]"},
    }
    file = folder / "w.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file
