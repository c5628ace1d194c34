"""Plan + engine: a query's incremental session.

`compile` is the one bridge from plan nodes to operators, `partials` fills or steps a circuit from
partial aggregates, `session` steps it with rows and hands out checkpoints, `strategy` says which
sides of joins it keeps, `trees` which joins are kept as trees and of what shape. No files, no Spark
session: rows that are not kept come through a reader.
"""
