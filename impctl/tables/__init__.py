"""Delta tables without a JVM: versions, files, statistics, changes and update batches.

A version is pinned when a table is opened. Snapshots say what a table holds at a version, change
reading what happened between two of them. Only `updates`, `create` and `clone` ever write.
"""
