"""How far recursive queries may go in this workload.

Law: whoever runs one, the engine or Spark, is given the same limits.
"""

from __future__ import annotations

from impctl.app.workbench.workbench import Workbench
from impctl.compile.compile import Compiled
from impctl.engine.operator import Limits


def limits_of(desk: Workbench) -> Limits:
    """The limits that the workload file gives, or the usual ones."""
    told = desk.workload.limits
    return Limits(told.rounds, told.rows)


def limited(desk: Workbench, compiled: Compiled) -> Compiled:
    """The same circuit, which from now on goes no further."""
    compiled.circuit.end_by(limits_of(desk))
    return compiled
