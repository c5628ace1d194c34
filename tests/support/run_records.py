"""A run as history keeps it, of which a test says only what it asks about."""

from __future__ import annotations

from typing import Any

from impctl.store.records import RunRecord


def run_record(action: str, **said: Any) -> RunRecord:
    """The record of a run that took no time and changed nothing, but for what is said."""
    nothing: dict[str, Any] = {
        "reason_code": "test",
        "reason": "",
        "started_at": 0.0,
        "elapsed_ms": 0.0,
        "read_ms": 0.0,
        "engine_ms": 0.0,
        "commit_ms": 0.0,
        "changes": 0,
        "added": 0,
        "removed": 0,
        "versions": {},
    }
    return RunRecord(action=action, **{**nothing, **said})
