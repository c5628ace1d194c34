"""`impctl maintain` or `capture` in a process of its own: how long it took, and the most memory.

Law: the process is a real one, started from a workload file written beside the scratch copy; what
it does is committed to the scratch store. Its time is all there is, from starting Python to its
end, without that of the process between. Peak memory is that of `impctl` itself: a JVM it has to
start outlives it, so nobody learns what that took.
Out of scope: what the state in it consists of (`benchmarks.measures.memory`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from impctl.errors import StorageError
from impctl.service.context import Context
from impctl.workload.models import LineageMode, PartitionSpec, QuerySpec, Workload

# A process that comes from a large one counts the memory of that one as its own peak, so a small
# one stands between. Linux counts kibibytes, macOS bytes.
_LAUNCHER = """
import os, subprocess, sys, time
started = time.perf_counter()
child = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
said = child.stderr.read()
_, status, used = os.wait4(child.pid, 0)
elapsed = (time.perf_counter() - started) * 1000
print(used.ru_maxrss * (1 if sys.platform == "darwin" else 1024), elapsed, flush=True)
sys.stderr.buffer.write(said)
os._exit(os.waitstatus_to_exitcode(status) & 255)
"""


class ProcessRun(Struct, frozen=True):
    """A process that ended well: its time in all and its peak memory."""

    elapsed_ms: float
    peak_bytes: int


def maintain_afresh(scratch: Context, spec: QuerySpec) -> ProcessRun:
    """Maintain the query of a scratch copy in a new process; StorageError where that fails."""
    return _run_afresh("maintain", scratch, spec)


def capture_afresh(scratch: Context, spec: QuerySpec) -> ProcessRun:
    """The same with its capture."""
    return _run_afresh("capture", scratch, spec)


def _run_afresh(verb: str, scratch: Context, spec: QuerySpec) -> ProcessRun:
    file = scratch.store_path.parent / "workload.yaml"
    document = workload_document(scratch.workload, spec, scratch.store_path)
    file.write_text(json.dumps(document, default=str))
    run = [sys.executable, "-P", "-m", "impctl", verb, str(file), "--query", spec.name]
    command = [sys.executable, "-P", "-c", _LAUNCHER, *run]
    pipe = subprocess.PIPE
    launcher = subprocess.Popen(
        command, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )
    try:
        output, complaints = launcher.communicate()
    except BaseException:
        # Both processes of the session: the folder they work in is about to go.
        _kill(launcher)
        launcher.communicate()
        raise
    if launcher.returncode:
        raise StorageError(
            f"`impctl {verb}` in a separate process failed: {complaints.strip()[-500:]}",
            hint="run the suite again",
        )
    peak, elapsed = output.split()
    return ProcessRun(float(elapsed), int(peak))


def _kill(launcher: subprocess.Popen[str]) -> None:
    """End it with the process that it started, where the system knows sessions."""
    if hasattr(os, "killpg"):
        os.killpg(launcher.pid, signal.SIGKILL)
    else:
        launcher.kill()


def workload_document(workload: Workload, spec: QuerySpec, store: Path) -> dict[str, object]:
    """The workload with this query alone, as a workload file says it (JSON is YAML)."""
    query: dict[str, object] = {"sql": spec.sql, "policy": str(spec.policy), "join": str(spec.join)}
    query["maintain"] = str(spec.maintain)
    if spec.sketch:
        query["sketch"] = dict(spec.sketch)
    if spec.params:
        query["params"] = dict(spec.params)
    if spec.buffer is not None:
        query["buffer"] = spec.buffer
    if spec.lineage is not LineageMode.ALL:
        query["lineage"] = str(spec.lineage)
    partitions: dict[str, dict[str, object]] = {}
    for part in workload.partitions:
        partitions.setdefault(part.table, {})[part.column] = _partition(part)
    document: dict[str, object] = {
        "version": 1,
        "name": workload.name,
        "catalog": workload.names.catalog,
        "schema": workload.names.schema,
        "tables": {
            name: {"path": table.path, "names": list(table.names)}
            for name, table in workload.tables.items()
        },
        "queries": {spec.name: query},
        "store": str(store),
        "spark": {"conf": dict(workload.spark.conf)},
    }
    if partitions:
        document["partitions"] = partitions
    if workload.spark.master is not None:
        document["spark"] = {"master": workload.spark.master, "conf": dict(workload.spark.conf)}
    return document


def _partition(part: PartitionSpec) -> dict[str, object]:
    if part.boundaries is not None:
        return {"boundaries": list(part.boundaries)}
    return {"ranges": part.ranges}
