"""`query` and its JVM killed with -9: what Spark left is known and goes with the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from impctl.store.disk import SPARK_SCRATCH, abandoned
from tests.crash.small import write_workload

pytestmark = pytest.mark.spark


def spark_folders(places: list[Path]) -> list[Path]:
    """Folders that Spark made, wherever they lie below these places."""
    result = (path for place in places for path in place.rglob("*"))
    return [path for path in result if path.name.startswith(("spark-", "blockmgr-"))]


def test_what_spark_left_is_gone_with_the_next_run(tmp_path: Path, launched_here: None) -> None:
    file = write_workload(tmp_path)
    temporary, disk = tmp_path / 'for "tem\\p" files', tmp_path / "disk"
    temporary.mkdir()
    disk.mkdir()
    conf = f"conf: {{spark.local.dir: '{disk},{tmp_path}/later'}}"
    file.write_text(file.read_text().replace("spark: {", f"spark: {{{conf}, "))
    environment = {**os.environ, "TMPDIR": str(temporary)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    environment.pop("SPARK_LOCAL_DIRS", None)
    words = [sys.executable, "-P", "-m", "impctl", "query", str(file), "--query", "by_g"]
    words += ["--by", "spark"]
    subprocess.run([*words[:4], "capture", str(file)], env=environment, check=True)
    places = [temporary, disk]

    process = subprocess.Popen(
        words, env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    until = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < until:
        if any(path.name.startswith("blockmgr-") for path in spark_folders(places)):
            break
        time.sleep(0.05)
    assert abandoned(places) == ()  # its process lives
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    left = spark_folders(places)
    assert left
    for path in left:
        assert any(part.startswith(SPARK_SCRATCH) for part in path.parts), path
    assert [*temporary.iterdir(), *disk.iterdir()]
    assert all(p.name.startswith(SPARK_SCRATCH) for p in [*temporary.iterdir(), *disk.iterdir()])

    subprocess.run(words, env=environment, check=True, stdout=subprocess.DEVNULL)
    for _ in range(100):  # the JVM ends a little later than its program
        if not [*temporary.iterdir(), *disk.iterdir()]:
            break
        time.sleep(0.1)
    assert [*temporary.iterdir(), *disk.iterdir()] == []
