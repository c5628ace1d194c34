"""impctl: provenance sketches over Delta tables, captured once and maintained incrementally.

Version only; nothing is re-exported, so that importing the package costs nothing.
"""

__version__ = "0.1.0"
