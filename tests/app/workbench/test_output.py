"""Files that the user asks for: two writers, and readers beside them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from impctl.service.output import write_whole


def test_no_reader_sees_a_part_of_a_file_that_two_write(tmp_path: Path) -> None:
    path, texts = tmp_path / "a.prom", ["a" * 200_000, "b" * 10]
    write_whole(path, texts[0])

    def write(text: str) -> None:
        for _ in range(60):
            write_whole(path, text)

    def read() -> set[str]:
        return {path.read_text() for _ in range(600)}

    with ThreadPoolExecutor(3) as pool:
        seen = pool.submit(read)
        list(pool.map(write, texts))
        assert seen.result() <= set(texts)
    assert [file.name for file in tmp_path.iterdir()] == ["a.prom"]
