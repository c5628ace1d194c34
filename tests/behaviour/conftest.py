"""The small workload on a real Delta table, and the command line to run on it."""

from tests.support.run_cli import cli, made_once, table

__all__ = ["cli", "made_once", "table"]
