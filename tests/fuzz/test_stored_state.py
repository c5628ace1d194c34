"""Stores with any file or any row damaged: every command answers or refuses in words.

What an answer from a damaged store may say is held in `tests/store/test_corruption.py`.
By hand: `IMPCTL_FUZZ=10` and `-m "slow or not slow"` for forty cases.
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from tests.fuzz.bounded import told
from tests.outside.conftest import FEED
from tests.support.random_cases import random_cases
from tests.support.run_cli import Capsys, Cli
from tests.support.small_workload import WORKLOAD

GROUPS = 12_000
"""Enough that states are files of their own."""

COMMANDS = (
    ("status",),
    ("plan",),
    ("explain",),
    ("rewrite", "--query", "q"),
    ("maintain", "--dry-run"),
    ("gc", "--dry-run"),
    ("doctor",),
    ("maintain",),
    ("gc",),
    ("status",),
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured store, and its table one change ahead of it."""
    folder = tmp_path_factory.mktemp("whole")
    numbers = [*range(GROUPS), 5, 5]
    rows = {"g": pa.array(numbers, pa.int64()), "x": pa.array([9] * len(numbers), pa.int64())}
    write_deltalake(str(folder / "t"), pa.table(rows), configuration=FEED)
    other = "  other: {sql: 'SELECT x, MAX(g) AS m FROM t GROUP BY x', sketch: {t: x}}\nstore:"
    text = WORKLOAD.replace("POLICY", "incremental").replace("store:", other)
    (folder / "w.yaml").write_text(text)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        assert run(build_app(), ["capture", str(folder / "w.yaml")]) == 0
    assert len(list((folder / ".impctl" / "state").iterdir())) >= 1
    more = {"g": pa.array([7] * 3, pa.int64()), "x": pa.array([9] * 3, pa.int64())}
    write_deltalake(str(folder / "t"), pa.table(more), mode="append")
    return folder


def place(whole: Path, folder: Path, capsys: Capsys) -> Cli:
    """A copy of the whole."""
    shutil.copytree(whole, folder)
    return Cli(capsys, folder / "w.yaml")


def damaged_file(draw: random.Random, store: Path) -> str:
    """Damage to one file, and what was done."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    file = draw.choice(files)
    content = bytearray(file.read_bytes())
    length = len(content)
    how = draw.randrange(9)
    at = draw.randrange(length or 1)
    match how:
        case 0 if length:
            content[at] ^= 1 << draw.randrange(8)
        case 1:
            del content[at:]
        case 2:
            content += draw.randbytes(draw.choice((1, 100, 5000)))
        case 3 if length:
            other = draw.randrange(length)
            content[at], content[other] = content[other], content[at]
        case 4:
            content[at : at + 64] = draw.randbytes(64)
        case 5:
            content[at : at + 4096] = bytes(4096)
        case 6:
            content[:] = draw.choice(files).read_bytes()
        case 7:
            file.unlink()
            if draw.random() < 0.5:
                file.mkdir()
            return f"{file.name} taken away"
        case _:
            del content[at : at + draw.choice((1, 512))]
    file.write_bytes(content)
    return f"{file.name} ({length} bytes) changed in way {how} at {at}"


def damaged_row(draw: random.Random, store: Path) -> str:
    """Damage to one cell of the catalog, or to a whole row or table of it."""
    connection = sqlite3.connect(store / "catalog.sqlite")
    try:
        named = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        table = draw.choice(sorted(name for (name,) in named))
        columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
        column = draw.choice([name for _, name, *_ in columns])
        # Not all tables have a rowid.
        keys = ", ".join(name for _, name, *_, place in columns if place) or "rowid"
        result = connection.execute(f"SELECT {column}, {keys} FROM {table} ORDER BY {keys}")
        rows = result.fetchall()
        old = [value for value, *_ in rows]
        _, *key = draw.choice(rows or [(None,)])
        one = f"({keys}) = ({', '.join('?' for _ in key)})"
        new = draw.choice(
            (None, "", "x", "é\0", b"", b"\xff", 0, -1, 2**62, 1.5, "{}", "[]", "[[1]]", "null")
        )
        if old and draw.random() < 0.3 and isinstance(value := draw.choice(old), str | bytes):
            new = value[: draw.randrange(len(value) + 1)]
        statement, values = draw.choice(
            (
                (f"UPDATE {table} SET {column} = ?", (new,)),
                (f"UPDATE {table} SET {column} = ?", (new,)),
                (f"UPDATE {table} SET {column} = ? WHERE {one}", (new, *key)),
                (f"DELETE FROM {table}", ()),
                (f"DROP TABLE {table}", ()),
                (f"ALTER TABLE {table} RENAME COLUMN {column} TO other", ()),
                (f"PRAGMA user_version = {draw.choice((-1, 0, 1, 2, 99, 2**31 - 1))}", ()),
            )
        )
        connection.execute("PRAGMA foreign_keys = OFF")
        try:
            connection.execute(statement, values)
            connection.commit()
        except sqlite3.Error as error:
            return f"{statement} {values!r}: not done, {error}"
        return f"{statement} {values!r}"
    finally:
        connection.close()


@pytest.mark.slow
@random_cases(4, 8, 60)
def test_a_damaged_store(cases: range, whole: Path, tmp_path: Path, capsys: Capsys) -> None:
    refused = 0
    for seed in cases:
        draw = random.Random(seed)
        cli = place(whole, tmp_path / str(seed), capsys)
        damage = damaged_row if seed % 2 else damaged_file
        done = damage(draw, cli.workload.parent / ".impctl")
        codes = [
            told(cli, command, *rest, what=f"seed {seed}: {done}").code
            for command, *rest in COMMANDS
        ]
        refused += any(codes)
        shutil.rmtree(cli.workload.parent)
    assert refused > len(cases) / 4


@pytest.mark.slow
@random_cases(1, 4, 20)
def test_a_damaged_delta_log(cases: range, whole: Path, tmp_path: Path, capsys: Capsys) -> None:
    """The log and the files of the table are not ours, and just as little to be trusted."""
    for seed in cases:
        draw = random.Random(seed)
        cli = place(whole, tmp_path / str(seed), capsys)
        done = damaged_file(draw, cli.workload.parent / "t")
        for command, *rest in COMMANDS:
            told(cli, command, *rest, what=f"seed {seed}: {done}")
        shutil.rmtree(cli.workload.parent)
