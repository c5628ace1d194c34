"""Python calls in; result records, warnings and exceptions out (docs/python.md).

What lives here: the object that `impctl.open` gives, and how outcomes become returns and raises.
Law: nothing is printed, the caller's Spark session is left as it is, and every call does what the
command of the same name does, with the same records. Out of scope: any meaning (`app`).
"""
