"""What each policy makes of a change that is carried, asks for a recapture, or allows nothing.

Elsewhere in this folder only those policies run that tell whether a change was carried.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.outside.conftest import FEED
from tests.outside.place import Place
from tests.outside.rows import ROWS
from tests.outside.test_schema import overwrite, retyped

Outcome = tuple[int, str]
"""Exit code, and the reason code or that of the error."""


def recreate(place: Place) -> None:
    shutil.rmtree(place.table)
    write_deltalake(str(place.table), ROWS.slice(3), configuration=FEED)


def remove(place: Place) -> None:
    shutil.rmtree(place.table)


def move(place: Place) -> None:
    """The file names another folder, where the same table lies now."""
    shutil.move(place.table, place.folder / "t2")
    place.table.symlink_to(place.folder / "t2")
    workload = place.cli.workload
    workload.write_text(workload.read_text().replace("{path: t}", "{path: t2}"))


def retype(place: Place) -> None:
    """The boundaries in the workload file make no sense any more."""
    overwrite(place, retyped("g", pa.string()))


CASES: dict[Callable[[Place], None], dict[str, Outcome]] = {
    Place.append: {
        "strict": (0, "incremental"),
        "incremental": (0, "incremental"),
        "full": (0, "policy_full"),
        "auto": (0, "incremental"),
    },
    recreate: {
        "strict": (4, "policy_refused"),
        "incremental": (7, "table_recreated"),
        "full": (0, "policy_full"),
        "auto": (0, "table_recreated"),
    },
    move: {
        "strict": (4, "policy_refused"),
        "incremental": (7, "definition_changed"),
        "full": (0, "definition_changed"),
        "auto": (0, "definition_changed"),
    },
    retype: {
        "strict": (4, "policy_refused"),
        "incremental": (7, "schema_changed"),
        "full": (2, "boundary_type"),
        "auto": (2, "boundary_type"),
    },
    remove: dict.fromkeys(("strict", "incremental", "full", "auto"), (3, "table_missing")),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CASES, ids=lambda change: change.__name__)
def test_each_policy(place: Place, change: Callable[[Place], None]) -> None:
    change(place)
    ran = place.under_each_policy()
    result = {
        policy: (one.code, one.error["code"] if one.code else one.results[0]["reason_code"])
        for policy, one in ran.items()
    }
    assert result == CASES[change]
    if result["strict"][1] == "policy_refused":
        assert ran["incremental"].error["message"] in ran["strict"].error["message"]
    if result["auto"][0] == 0:
        is_carried = result["auto"][1] == "incremental"
        assert ran["auto"].results[0]["action"] == ("exact" if is_carried else "recapture")
        assert ran["full"].results[0]["action"] == "recapture"
        assert bool(ran["auto"].document["warnings"]) is not is_carried
