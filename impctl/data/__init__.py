"""Typed columns: `schema` names value types, `vector` holds one column, `keys` computes key codes.

No meaning, no queries, no files.
"""
