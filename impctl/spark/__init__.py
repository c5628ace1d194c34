"""The Spark session, snapshots as DataFrames, SQL text run to Arrow.

pyspark is imported inside functions only, so that commands without Spark start fast; nothing here
reaches into the JVM or uses RDDs, so that any master works as `local[*]` does.
"""
