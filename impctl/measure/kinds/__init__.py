"""One file per measure of `impctl bench`, and what they share.

Law: each says what it times and against what.
"""
