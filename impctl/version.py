"""The version of impctl, alone, so that every room may ask for it.

Law: imports nothing.
Out of scope: the versions of other packages (`cli.version`).
"""

__version__ = "0.1.0"
