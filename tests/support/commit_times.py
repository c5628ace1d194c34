"""Commits of Delta tables that say another time than that at which they were made."""

from __future__ import annotations

import json
from pathlib import Path


def log_entry(table: str | Path, version: int) -> Path:
    return Path(table) / "_delta_log" / f"{version:020}.json"


def set_time(table: str | Path, version: int, at: float) -> None:
    """Have a commit say this time, in seconds since 1970, or a part of a millisecond less."""
    entry = log_entry(table, version)
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = int(at * 1000)
    entry.write_text("".join(json.dumps(action) + "\n" for action in actions))
