"""The Python interface: result records, warnings and exceptions (docs/python.md).

Law: nothing is printed, the caller's Spark session is left as it is, and every call does what the
command of the same name does, with the same records.
"""
