"""Fixtures for tests of the use cases: the small workload, and folders that are written once."""

from tests.support.kept_workload import kept
from tests.support.run_cli import cli, cli_of, cli_once, made_once, table

__all__ = ["cli", "cli_of", "cli_once", "kept", "made_once", "table"]
