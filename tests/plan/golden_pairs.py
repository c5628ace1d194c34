"""Golden files: SQL text and the plan as lines, `=>` between the two, `----` between pairs."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def pairs(name: str) -> list[tuple[str, str]]:
    """The pairs of one golden file, in order."""
    result = []
    for block in (_FOLDER / f"{name}.txt").read_text(encoding="utf-8").split("----\n"):
        sql, _, lines = block.partition("\n=>\n")
        result.append((sql.strip(), lines.strip()))
    return result
