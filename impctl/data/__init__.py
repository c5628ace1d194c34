"""Columns with types and weights; no meaning, no queries, no files.

`schema` names value types, `vector` holds one column, `keys` turns key columns into codes.
"""
