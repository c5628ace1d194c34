"""No number of a marked table in docs/records was copied by hand."""

from __future__ import annotations

import json

from tests.docs.benchmark_tables import RECORDS, drawn, marks, pages


def test_the_tables_are_those_of_the_records() -> None:
    assert pages()
    for path in pages():
        page = path.read_text(encoding="utf-8")
        assert drawn(page) == page, path.name


def test_every_record_is_shown_and_whole() -> None:
    named = {record for path in pages() for record, _ in marks(path.read_text(encoding="utf-8"))}
    result = {
        file.name: json.loads(file.read_text(encoding="utf-8")) for file in RECORDS.glob("*.json")
    }
    assert named == set(result)
    for name, record in result.items():
        assert record["failures"] == [], name
        assert all(cell["covers"] in (True, None) for cell in record["cells"]), name
        assert all(cell["equal"] in (True, None) for cell in record["cells"]), name
