"""The small workload, and folders that are written once, for the tests of all use cases."""

from tests.support.kept_workload import kept
from tests.support.made_once import made_once
from tests.support.small_workload import cli, table

__all__ = ["cli", "kept", "made_once", "table"]
