"""What stands beside measured numbers: the machine, the versions, and how Spark was set up.

Law: only settings that decide how quick Spark is are told, since others may hold secrets.
Out of scope: reading the machine (`bench.machine`).
"""

from __future__ import annotations

import os
from contextlib import suppress

from impctl.bench.machine import describe_machine
from impctl.errors import UsageError
from impctl.service.context import Workbench, master_of
from impctl.spark.session import find_java, shown

_SETTINGS = ("spark.driver.memory", "spark.sql.shuffle.partitions")


def machine_facts(desk: Workbench) -> dict[str, str]:
    """The facts by name, with `java` and `spark`: its master, memory and shuffle partitions."""
    facts = describe_machine()
    # Where nothing needs Spark no Java is needed either.
    with suppress(UsageError):
        facts["java"] = str(find_java(os.environ).version)
    spec = desk.spark_spec
    held = {name: spec.conf[name] for name in _SETTINGS if name in spec.conf}
    told = [f"{name.removeprefix('spark.')} {value}" for name, value in held.items()]
    facts["spark"] = ", ".join([shown(master_of(spec.master)), *told])
    return facts
