"""Runs a query in DuckDB, over all files and over those that the sketch leaves, and compares.

Usage: compare_with_duckdb.py TABLE QUERY.sql FILES.json ANSWER.parquet
QUERY.sql and FILES.json come from `impctl rewrite --files`, and ANSWER.parquet from
`impctl query --out`.
"""

import json
import sys
import time
from pathlib import Path

import duckdb
import sqlglot
from deltalake import DeltaTable

path, query, listed, answer = map(Path, sys.argv[1:])
name = path.name
text = sqlglot.transpile(query.read_text(), read="spark", write="duckdb")[0]
every = DeltaTable(path).file_uris()
sketched = json.loads(listed.read_text())[name]
expected = duckdb.read_parquet(str(answer)).fetchall()

for what, files in (("all", every), ("with the sketch", sketched)):
    duckdb.read_parquet(files).create_view(name)
    began = time.perf_counter()
    rows = duckdb.sql(text).fetchall()
    took = (time.perf_counter() - began) * 1000
    is_same = sorted(rows) == sorted(expected)
    print(f"DuckDB, {len(files):,} files ({what}): {len(rows)} rows in {took:,.0f} ms, ", end="")
    print("the same as impctl's answer" if is_same else "NOT the same as impctl's answer")
    if not is_same:
        sys.exit(1)
