"""Plans turned into Spark SQL text; sketches turned into range predicates.

SQL is built from sqlglot nodes only, never by pasting strings. Running it is room `spark`'s.
"""
