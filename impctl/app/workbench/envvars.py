"""Every environment variable of impctl, with what it sets and since when.

Law: a variable that is not listed here is read nowhere; `docs/configuration.md` shows this table.
Out of scope: reading them (the command line does, see `cli.options`; demo and tests do for theirs).
"""

from __future__ import annotations

from impctl.values import dataclass

PREFIX = "IMPCTL_"

STORE = "IMPCTL_STORE"
POLICY = "IMPCTL_POLICY"
SKETCH = "IMPCTL_SKETCH"
LOCK_TIMEOUT = "IMPCTL_LOCK_TIMEOUT"
SPARK_PROFILE = "IMPCTL_SPARK_PROFILE"
BATCH_ROWS = "IMPCTL_BATCH_ROWS"
IMBALANCE = "IMPCTL_IMBALANCE"
CRIMES = "IMPCTL_CRIMES"
DATA = "IMPCTL_DATA"
FIXTURES = "IMPCTL_FIXTURES"
LARGE_CHANGE = "IMPCTL_LARGE_CHANGE"
SCRUB = "IMPCTL_SCRUB"
DISK = "IMPCTL_DISK"
SHARED_STORE = "IMPCTL_SHARED_STORE"
TPCDS = "IMPCTL_TPCDS"
FUZZ = "IMPCTL_FUZZ"
SOAK = "IMPCTL_SOAK"
DAYS = "IMPCTL_DAYS"
NOW = "IMPCTL_NOW"
SPARK_MEMORY = "IMPCTL_SPARK_MEMORY"
MEMORY = "IMPCTL_MEMORY"
BY = "IMPCTL_BY"


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One variable: what it sets, the flag that wins over it (if any), and when it came."""

    name: str
    purpose: str
    flag: str | None
    since: str


ENVVARS = (
    EnvVar(STORE, "Folder of sketches and state", "--store", "0.1.0"),
    EnvVar(POLICY, "What `maintain` may do, for all queries of the run", "--policy", "0.1.0"),
    EnvVar(SKETCH, "Whether queries use their sketches", "--sketch", "0.1.0"),
    EnvVar(LOCK_TIMEOUT, "Seconds to wait for another writer", "--lock-timeout", "0.1.0"),
    EnvVar(SPARK_PROFILE, "YAML file with Spark settings", "--spark-profile", "0.1.0"),
    EnvVar(BATCH_ROWS, "Number of changes per eager batch", "--batch-rows", "0.1.0"),
    EnvVar(
        BY,
        "Who answers queries: materialized results (state), the engine or Spark",
        "--by",
        "0.1.0",
    ),
    EnvVar(
        MEMORY,
        "Memory limit of a process: to answer a query, to build the state of a capture, to follow",
        "--memory",
        "0.1.0",
    ),
    EnvVar(IMBALANCE, "Skew of ranges that causes a warning", "--imbalance", "0.1.0"),
    EnvVar(
        LARGE_CHANGE,
        "Megabytes of a change above which Spark pre-aggregates it",
        "--large-change",
        "0.1.0",
    ),
    EnvVar(SCRUB, "Megabytes of unused state that each run verifies", "--scrub", "0.1.0"),
    EnvVar(DISK, "Disk budget for the state of all queries", "--disk", "0.1.0"),
    EnvVar(SHARED_STORE, "`1`: other users may own and write the store", None, "0.1.0"),
    EnvVar(
        NOW,
        "Override of the current time, for expiries, `current_date` and the like",
        "--now",
        "0.1.0",
    ),
    EnvVar(CRIMES, "Parquet file with the crimes data, for demo and tests", "--source", "0.1.0"),
    EnvVar(DATA, "Folder of the tables in `workloads/*.yaml`", None, "0.1.0"),
    EnvVar(FIXTURES, "Folder of Delta tables written by other programs, for tests", None, "0.1.0"),
    EnvVar(
        TPCDS,
        "Workload file of TPC-DS with its tables in the same folder, for a test",
        None,
        "0.1.0",
    ),
    EnvVar(FUZZ, "Factor for the number of random test cases", None, "0.1.0"),
    EnvVar(SOAK, "Random operations of the soak test; `N@SEED` for another seed", None, "0.1.0"),
    EnvVar(DAYS, "Days of a moving window that a test compares with Spark", None, "0.1.0"),
    EnvVar(
        SPARK_MEMORY,
        "Driver memory in `configs/*.yaml`, and of the Spark session that the tests share",
        None,
        "0.1.0",
    ),
)
