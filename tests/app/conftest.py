"""The small workload, and folders that are written once, for the tests of all use cases."""

from tests.support.made_once import made_once
from tests.support.small_workload import cli, table

__all__ = ["cli", "made_once", "table"]
