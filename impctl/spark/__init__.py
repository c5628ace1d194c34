"""The Spark session, snapshots as DataFrames, SQL text run to Arrow. pyspark is imported inside
functions only, so that commands without Spark start fast. No JVM access and no RDDs, so any master
works as `local[*]` does."""
