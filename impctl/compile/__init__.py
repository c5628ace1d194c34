"""Plans compiled into circuits, and one query's session over its circuit.

No files and no Spark session: rows that are not kept come through a reader.
"""
