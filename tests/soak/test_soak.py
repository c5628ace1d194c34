"""Random operations on one store: nothing lost, nothing wrong, nothing left.

`IMPCTL_SOAK` sets how many; what happened is printed and recorded as properties of the test.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from impctl.service.settings import SOAK
from tests.soak.driver import QUERIES, Soak
from tests.soak.writer import running_writer

_COUNT, _, _SEED = os.environ.get(SOAK, "40").partition("@")
OPERATIONS, SEED = int(_COUNT), int(_SEED or 1)


@pytest.mark.slow
@pytest.mark.timeout(900 + 10 * OPERATIONS)
def test_nothing_is_lost_and_nothing_wrong(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with running_writer() as writer:
        soak = Soak(tmp_path, SEED, writer)
        soak.run(OPERATIONS)
    for name, count in sorted(soak.done.items()):
        record_property(name, count)
    print(f"seed {SEED}, {OPERATIONS} operations: {dict(sorted(soak.done.items()))}")  # noqa: T201
    print(f"{soak.answers} answers, {soak.sketches} sketches, {dict(soak.slack)}")  # noqa: T201
    assert soak.answers >= OPERATIONS // 6
    assert soak.sketches > OPERATIONS * len(QUERIES)
    assert soak.done["answers with rows"] > soak.answers // 2
    assert soak.done["uses of stored sketches"] > OPERATIONS // 4
    assert soak.done["killed"] >= soak.done["shots"] // 4
