"""The small workload, and folders that are written once, for the tests of all use cases."""

from tests.support.kept_workload import kept
from tests.support.made_once import cli_once, made_once
from tests.support.run_cli import cli_of
from tests.support.small_workload import cli, table

__all__ = ["cli", "cli_of", "cli_once", "kept", "made_once", "table"]
