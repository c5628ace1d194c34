"""What a query asks, as frozen nodes; no data, no state, no Spark.

`parse` is the only reader of sqlglot trees; `safety` decides which sketches are safe; `rules`
rewrite plans; `fingerprint` recognises a plan again.
"""
