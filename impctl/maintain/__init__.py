"""Plan + engine: a query's incremental session.

`compile` is the one bridge from plan nodes to operators, `initial` fills a fresh circuit from
partial aggregates, `session` steps it and hands out checkpoints. No files, no Spark session.
"""
