"""Locks that keep nobody off: none can be mounted here, so the system says what it says on one."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from impctl.errors import UsageError
from impctl.store.lock import refuse_idle_lock
from impctl.store.store import Store

_LINE = "{number} 1 0:{number} / {point} {options} shared:1 - {kind} server:/x {more}\n"


def test_a_lock_that_two_can_hold_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(UsageError) as caught:
        Store.open(tmp_path / "store")
    assert caught.value.code == "store_without_locks"
    assert "two holders" in caught.value.message
    assert "local disk" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("kind", "options", "more", "refused"),
    [
        ("nfs", "rw,relatime", "rw,vers=3,nolock,local_lock=all", "nolock"),
        ("nfs4", "rw", "rw,vers=4.2,local_lock=flock", "local_lock=flock"),
        ("nfs4", "rw", "rw,vers=4.2,local_lock=none", None),
        ("cifs", "rw", "rw,nobrl", "nobrl"),
        ("lustre", "rw", "rw,localflock", "localflock"),
        ("ext4", "rw", "rw,nolock", None),
    ],
)
def test_locks_that_end_at_this_machine_are_refused(
    tmp_path: Path, kind: str, options: str, more: str, refused: str | None
) -> None:
    point = tmp_path / "a mount"
    path = point / "store" / "lock"
    path.parent.mkdir(parents=True)
    path.touch()
    mounts = tmp_path / "mountinfo"
    root = _LINE.format(number=1, point="/", options="rw", kind="nfs", more="rw,nolock")
    escaped = str(point).replace(" ", "\\040")
    here = _LINE.format(number=2, point=escaped, options=options, kind=kind, more=more)
    beside = _LINE.format(number=3, point=f"{escaped}/st", options="rw", kind="nfs", more="nolock")
    mounts.write_text(root + here + beside)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if refused is None:
            refuse_idle_lock(path, mounts)
            return
        with pytest.raises(UsageError) as caught:
            refuse_idle_lock(path, mounts)
    assert caught.value.code == "store_without_locks"
    assert f"`{refused}`" in caught.value.message
