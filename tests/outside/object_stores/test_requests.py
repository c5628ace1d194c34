"""How many requests commands send to an object store, beside deltalake doing the same alone.

Numbers of requests, not times: they are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.outside.object_stores.lake import Batch, Lake, appends, apply_by_deltalake, mixed
from tests.support.object_store import kinds

Maker = Callable[[int], list[Batch]]

BATCHES = 5
MOST = 1.5
"""Requests of impctl for each of deltalake's own."""


def own_requests(lake: Lake, batches: list[Batch]) -> int:
    """Of deltalake, which opens the table, applies the batches and checks nothing."""
    lake.make("own")
    lake.asked()
    apply_by_deltalake(lake.delta("own"), batches)
    return len(lake.asked())


@pytest.mark.slow
@pytest.mark.parametrize("make", [appends, mixed])
def test_apply(lake: Lake, make: Maker) -> None:
    batches = make(BATCHES)
    own = own_requests(lake, batches)
    place = lake.workload(lake.make("t"), batches)
    lake.asked()
    place.cli.good("apply", "--all")
    asked = lake.asked()
    assert lake.delta("t").version() == BATCHES
    assert len(asked) <= MOST * own, kinds(asked)
    # The log is listed when it is opened, and by deltalake's own commits: thrice each.
    assert kinds(asked)["LIST log"] == 1 + 3 * BATCHES
    assert kinds(asked)["HEAD data"] == kinds(asked)["HEAD commit"] == 0


def test_batches_that_are_in_are_found_by_reading_the_log_once(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), appends(BATCHES))
    place.cli.good("apply", "--all")
    lake.asked()
    lake.delta("t")
    opened = len(lake.asked())
    ran = place.cli.good("apply", "--all")
    asked = lake.asked()
    assert [result["version"] for result in ran.results] == [*range(1, BATCHES + 1)]
    assert all(result["already_applied"] for result in ran.results)
    # Each entry once for what it holds; per batch a look beyond the log's end and one at its end.
    assert len(asked) <= opened + (BATCHES + 1) + 2 * BATCHES + 2, kinds(asked)
    # A checkpoint tells of batches before it: only the one that is in asks for what it stands for.
    lake.delta("t").create_checkpoint()
    more = lake.workload(lake.uri("t"), [*appends(BATCHES)[:1], *appends(BATCHES + 2)[BATCHES:]])
    lake.asked()
    ran = more.cli.good("apply", "--all")
    known = kinds(lake.asked())
    assert [result["already_applied"] for result in ran.results] == [True, False, False]
    assert [result["version"] for result in ran.results] == [1, BATCHES + 1, BATCHES + 2]
    assert known["GET commit"] <= BATCHES + 2 * 6, known


@pytest.mark.slow
def test_capture_reads_what_a_reader_of_the_column_reads(lake: Lake) -> None:
    lake.make("t")
    lake.asked()
    pa.table(lake.delta("t").to_pyarrow_table(columns=["g", "x"]))
    own = len(lake.asked())
    lake.workload(lake.uri("t")).cli.good("capture")
    asked = lake.asked()
    assert len(asked) <= MOST * own, kinds(asked)


@pytest.mark.slow
@pytest.mark.parametrize("make", [appends, mixed])
def test_maintain_reads_what_a_reader_of_the_change_feed_reads(lake: Lake, make: Maker) -> None:
    place = lake.workload(lake.make("t"))
    place.cli.good("capture")
    apply_by_deltalake(lake.delta("t"), make(BATCHES))
    lake.asked()
    lake.delta("t").load_cdf(starting_version=1, columns=["g", "x", "_change_type"]).read_all()
    own = len(lake.asked())
    ran = place.cli.good("maintain", "--policy", "incremental")
    asked = lake.asked()
    assert [result["reason_code"] for result in ran.results] == ["incremental"]
    assert len(asked) <= MOST * own, (own, kinds(asked))


@pytest.mark.slow
def test_commands_that_look_open_the_log_once(lake: Lake) -> None:
    place = lake.workload(lake.make("t"), appends(3))
    place.cli.good("capture")
    place.cli.good("apply", "--all")
    place.cli.good("maintain")
    lake.asked()
    lake.delta("t")
    own = len(lake.asked())
    for command in ("check", "status", "rewrite", "explain"):
        place.cli.good(command)
        asked = lake.asked()
        assert len(asked) <= MOST * own, (command, kinds(asked))
