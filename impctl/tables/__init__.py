"""Delta tables without a JVM: versions, files, statistics, changes and update batches.

A version is pinned when a table is opened. Only `tables.write` ever changes a table.
"""
