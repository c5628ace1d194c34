"""The page: every setting in it, nothing that is not escaped, nothing that loads."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from impctl.app.results.simulated import SimulateResult
from impctl.app.simulating.page import render
from tests.cli.examples import EXAMPLES

RESULT = EXAMPLES["simulate"]
assert isinstance(RESULT, SimulateResult)
HOSTILE = "</script><img src=x onerror=alert(1)>&"


def drawings(page: str) -> list[dict]:
    found = re.search(r'<script type="application/json" id="drawings">(.*?)</script>', page, re.S)
    assert found is not None
    return json.loads(found[1])


def test_every_setting_is_in_the_table_and_drawn() -> None:
    page = render(RESULT)
    for text in ("8,400", "33,000", "15.7 min", "77,912", "1,344 h", "-6%", "10 MB, use"):
        assert text in page, text
    work, reads, age, runs = drawings(page)
    points = [point for line in work["panels"][0]["lines"] for point in line["points"]]
    assert [(point["x"], point["y"]) for point in points] == [
        (116_000_000, 942_000.0),
        (20_200_000, 0.0),
    ]
    assert work["groups"] == reads["groups"] == ["as the file has it", "use"]
    assert age["categories"] == runs["categories"] == ["as the file has it", "use"]
    # What was reckoned is no median of runs.
    assert ">runs</th>" not in page.split('id="figure-3"')[0].split('id="figure-1"')[1]
    assert render(RESULT) == page


def test_text_of_files_is_escaped_and_nothing_loads() -> None:
    first = replace(RESULT.settings[0], setting=HOSTILE, trigger=HOSTILE)
    hostile = replace(RESULT, source=HOSTILE, settings=(first,), commits={HOSTILE: 1})
    page = render(hostile)
    assert "<img" not in page
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"https?:", page)
