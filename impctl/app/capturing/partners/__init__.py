"""Rows that a circuit does not keep, read at the versions a step leads to: from files, or by Spark.

Law: whoever reads them, they are the same rows with the same fragments.
"""
