"""Report pages: all cells and claims, no external resources, and rendering in a browser."""

from __future__ import annotations

import importlib
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from impctl.bench import report
from impctl.bench.record import Cell, Chart, Figure, Label, Metric, Record
from impctl.bench.report import draw, render_report
from impctl.errors import UsageError
from tests.bench.sample_records import (
    every_measure_record,
    published_record,
    small_cell,
    small_record,
)

HOSTILE = "</script><img src=x onerror=\"alert('1')\">&\u2028"
INLINE = {"code", "b", "i", "span", "small", "a"}
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """The elements of a page, the text outside scripts and styles, and unclosed elements."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without its start"
        assert self.open.pop() == tag
        if tag not in INLINE:
            self.texts.append(" ")

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self.open):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def chart_data(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="charts">(.*?)</script>', html, re.S)
    assert match is not None
    assert not set("<>&") & set(match[1])
    charts = json.loads(match[1], parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert isinstance(charts, dict)
    return charts


@pytest.fixture(scope="module")
def record() -> Record:
    return published_record()


@pytest.fixture(scope="module")
def html(record: Record) -> str:
    return render_report(record)


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_page_is_well_formed(page: Page) -> None:
    assert not page.open
    check_ids_and_links(page)
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))


def check_ids_and_links(page: Page) -> None:
    """Each id is unique, and links lead to one."""
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {(attributes["href"] or "")[1:] for attributes in page.all("a")} <= set(ids)


def test_nothing_external_is_loaded(page: Page, html: str) -> None:
    for tag, attributes in page.elements:
        for name in ("src", "href", "action", "data", "srcset", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, f"<{tag} {name}={value!r}>"
        assert not any(name.startswith("on") for name in attributes)
        assert "style" not in attributes
    assert not page.all("iframe")
    assert "default-src 'none'" in str(page.all("meta"))
    for text in re.findall(r"<style>(.*?)</style>", html, re.S):
        assert not any(address in text for address in ("http", "url(", "@import"))
    library = re.findall(r"<script>(.*?)</script>", html, re.S)
    assert len(library) == 2
    assert not any("fetch(" in text or "XMLHttpRequest" in text for text in library)


def test_pages_are_deterministic(record: Record, html: str) -> None:
    assert render_report(record) == html


ON_THE_PAGE = (
    # The run is described at the top.
    *("2026-11-22 23:09 UTC", "Intel(R) Xeon(R) Processor, 2 cores, 24 GB memory", "9259beb"),
    *("Micro-benchmarks", "pyspark 4.3.0", "1× the suite", "3 runs", "at most 6 % longer"),
    # The summary lists wins, losses and failures.
    "Maintaining was faster than recapture in",
    "When not to use a sketch",
    "Recapture in DuckDB was faster in “Number of aggregates”: 1 aggregate from 200,000 changes on",
    "The index join was faster than the tree in “A social network”",
    "the join's state would exceed max_state_bytes;",
    "% of the table",
    # Ranges are explained.
    "the worst of one side over the best of the other",
    "Runs with equal values have no such range",
)


def test_the_page_describes_the_run(page: Page) -> None:
    assert [text for text in ON_THE_PAGE if text not in page.text] == []


def test_every_cell_and_claim_is_on_the_page(record: Record, page: Page) -> None:
    tags = [tag for tag, _ in page.elements]
    bodies = tags.count("tr") - tags.count("thead")
    cases = {cell.labels.get("groups") for cell in record.cells_of("groups")}
    assert bodies >= len(record.cells) + len(cases)
    for figure in record.figures:
        for text in (figure.title, figure.about, figure.claim, figure.source):
            assert " ".join(text.replace("`", "").split()) in page.text


def test_every_chart_has_a_text_description(page: Page) -> None:
    canvases = page.all("canvas")
    assert len(canvases) > 20
    for canvas in canvases:
        assert canvas["role"] == "img"
        assert "The table below has every number." in (canvas["aria-label"] or "")
    assert canvases[0]["aria-label"] == (
        "Number of aggregates. Chart of maintain, recapture by changes, a line for each "
        "aggregates. The table below has every number."
    )


def test_rows_have_headers(record: Record, html: str) -> None:
    rows = re.findall(r"<tr>(.*?)</tr>", html)
    assert '<th scope="row" class="n">10</th><th scope="row" class="n">500,000</th>' in html
    with_header = [row for row in rows if '<th scope="row"' in row]
    cases = {(cell.figure, *cell.labels.items()) for cell in record.cells}
    assert len(with_header) > len(cases)
    assert all('<th scope="' in row for row in rows)


def hostile_figure(text: str, *metrics: str) -> Figure:
    return Figure(text, text, text, Chart("x", metrics, (text,)), text, text)


def test_hostile_text_is_escaped() -> None:
    metric = Metric(1.0, 0.5, 2.0, 3)
    cells = [
        Cell(HOSTILE, {"x": x, HOSTILE: HOSTILE}, {"y_ms": metric, HOSTILE: metric}, note=HOSTILE)
        for x in (1, 2)
    ]
    cells.append(Cell(HOSTILE, {"x": HOSTILE}, {"y_ms": metric}, covers=False, equal=False))
    facts = {"title": HOSTILE, "suite": HOSTILE, "started": HOSTILE, "failures": (HOSTILE,)}
    facts["machine"] = {HOSTILE: HOSTILE, "cpu": HOSTILE}
    figures = (hostile_figure(HOSTILE, "y_ms", HOSTILE),)
    hostile = render_report(small_record(*cells, figures=figures, **facts))
    page = Page(hostile)
    assert not page.open
    assert not page.all("img")
    assert len(page.all("script")) == 3
    assert "onerror" in page.text
    assert "</script>" in str(chart_data(hostile)["1-0"]["data"]["datasets"][0]["label"])


def test_invalid_numbers_are_dashes_and_not_drawn() -> None:
    invalid = [math.nan, math.inf, -math.inf, 0.0, -1.0]
    cells = [
        Cell("f", {"changes": x + 1}, {"maintain_ms": Metric(value, value, value, 2)})
        for x, value in enumerate(invalid)
    ]
    cells.append(small_cell({"changes": 9}, {"maintain_ms": 4.0, "recapture_ms": 0.0}))
    for log in ((), ("x", "y")):
        chart = Chart("changes", ("maintain_ms", "recapture_ms"), (), log)
        record = small_record(*cells, chart=chart, noise=math.nan, elapsed_s=math.inf)
        html = render_report(record)
        assert chart_data(html)
        assert "are not drawn" in html
        assert ">nan" not in html


SPARSE = [
    small_record(),
    *(
        small_record(small_cell(labels, metrics))
        for labels, metrics in (
            ({}, {}),
            ({"changes": 10}, {}),
            ({"other": 1}, {"maintain_ms": 1.0}),
            ({"changes": 10}, {"maintain_ms": 1.0}),
            ({"changes": 10}, {"maintain_ms": 2.0, "recapture_ms": 400.0}),
            ({"changes": math.nan}, {"maintain_ms": 1.0, "recapture_ms": 2.0}),
        )
    ),
    small_record(
        small_cell({"changes": 10}, {"maintain_ms": 1.0}),
        small_cell({"changes": "lazy"}, {"maintain_ms": 2.0}),
    ),
    small_record(small_cell({"changes": 10}, {"maintain_ms": 1.0}, figure="of no figure")),
    small_record(figures=()),
]


@pytest.mark.parametrize("sparse", SPARSE)
def test_sparse_records_have_a_page(sparse: Record) -> None:
    page = Page(render_report(sparse))
    assert not page.open
    assert "A small record" in page.text


def test_figures_with_similar_names_have_distinct_links() -> None:
    chart = Chart("changes", ("maintain_ms",))
    twice = (Figure("a b", "One", "", chart), Figure("a/b", "Two", "", chart))
    check_ids_and_links(Page(render_report(small_record(figures=twice))))


def text_of(*cells: Cell, **facts: object) -> str:
    return Page(render_report(small_record(*cells, **facts))).text


MAINTAINED = small_cell({"changes": 10}, {"maintain_ms": 1.0})


def test_the_noise_of_a_figure_is_shown_one_sided() -> None:
    text = text_of(MAINTAINED, figure_noise={"f": 0.125})
    assert "Around this figure, equal work took at most 12.5 % longer." in text
    assert "Noise equal work took at most 5 % longer" in text
    assert "±" not in text
    assert "Around this figure" not in text_of(MAINTAINED)


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (
            {"maintain_ms": 10.0, "recapture_ms": 900.0, "duckdb_ms": 50.0},
            "Speed-up over recapture: 90×. Speed-up over recapture in DuckDB: 5×.",
        ),
        (
            {"sketch_ms": 100.0, "plain_ms": 400.0, "duckdb_plain_ms": 50.0},
            "Speed-up of the query with its sketch: 4×. Speed-up of that over DuckDB: 0.5×.",
        ),
    ],
)
def test_speed_up_over_duckdb_is_shown(metrics: dict[str, float], expected: str) -> None:
    assert expected in text_of(small_cell({"changes": 10}, metrics))


def test_wrong_answers_come_first() -> None:
    text = text_of(small_cell({"changes": 10}, {"maintain_ms": 1.0}, covers=False))
    assert "Wrong answers" in text
    assert "The sketch did not cover recapture: A figure: 10 changes." in text


def test_a_single_run_has_no_range() -> None:
    assert "<b>1 ms</b></td>" in render_report(small_record(MAINTAINED))


def test_a_report_needs_its_template_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs the package `jinja2`") as raised:
        render_report(small_record())
    assert raised.value.code == "extra_missing"


def test_undecided_cells_are_reported() -> None:
    slower = small_cell({"changes": 10}, {"plain_ms": 60.0, "sketch_ms": 100.0})
    text = text_of(slower, noise=2.0)
    unsteady = "A fixed piece of work took as much as 3× its fastest time"
    assert f"The machine was not steady {unsteady}" in text
    assert "Not decided: 1 cell slower with a sketch" in text
    assert "Nothing measured here" not in text
    expected = "The query was slower with its sketch in “A figure”: at 10 changes (0.6×"
    assert expected in text_of(slower, noise=0.05)


def test_a_line_per_group_and_metric_sorted_along_x() -> None:
    chart = Chart("changes", ("maintain_ms", "recapture_ms"), ("groups",), ("x", "y"))
    cells = [
        small_cell({"groups": groups, "changes": x}, {"maintain_ms": x, "recapture_ms": 9.0})
        for groups in (500, 50)
        for x in (100, 10)
    ]
    drawing = draw(chart, cells)
    (panel,) = drawing.panels
    assert [(line["label"], line["color"], line["borderDash"]) for line in panel.datasets] == [
        ("maintain, 50 groups", "w0", ()),
        ("recapture, 50 groups", "w0", (7, 4)),
        ("maintain, 500 groups", "w1", ()),
        ("recapture, 500 groups", "w1", (7, 4)),
    ]
    assert drawing.legend == panel.datasets
    assert [point["x"] for point in panel.datasets[0]["data"]] == [10, 100]
    assert panel.chart["options"]["scales"]["y"]["type"] == "logarithmic"
    assert drawing.hidden == 0


def test_text_on_x_makes_ordered_categories() -> None:
    cells = [small_cell({"batch": batch}, {"maintain_ms": 1.0}) for batch in ("100", "20", "lazy")]
    drawing = draw(Chart("batch", ("maintain_ms",)), cells)
    assert drawing.panels[0].chart["options"]["scales"]["y"]["labels"] == ["100", "20", "lazy"]
    assert [(point["y"], point["at"]) for point in drawing.panels[0].datasets[0]["data"]] == [
        (0, "batch 100"),
        (1, "batch 20"),
        (2, "batch lazy"),
    ]
    drawing = draw(Chart("groups", ("a_ms",)), [small_cell({"groups": 5000}, {"a_ms": 1.0})])
    assert drawing.panels[0].chart["options"]["scales"]["y"]["labels"] == ["5,000"]


def test_units_have_panels_and_other_labels_have_lines() -> None:
    cells = [
        small_cell({"x": x, "kind": kind, "share": x / 100}, {"a_ms": x, "b_bytes": 10.0 * x})
        for kind in ("one", "two")
        for x in (1, 2)
    ]
    drawing = draw(Chart("x", ("a_ms", "b_bytes")), cells)
    assert [panel.title for panel in drawing.panels] == ["a", "b"]
    labels = [[line["label"] for line in panel.datasets] for panel in drawing.panels]
    assert labels == [["a, kind one", "a, kind two"], ["b, kind one", "b, kind two"]]
    assert [line["label"] for line in drawing.legend] == labels[0] + labels[1]


@pytest.mark.parametrize(
    ("metric", "values", "log", "title", "ends"),
    [
        ("a_ms", (0.0, 7e5), (), "a (min)", (0, 11.6667)),
        ("a_ms", (2.0, 4000.0), ("y",), "a (ms, log scale)", (2, 4000)),
        ("a_bytes", (1.0, 3e6), (), "a (MB)", (1e-06, 3)),
        ("a_rows", (1.0, 2e6), (), "a", (1, 2e6)),
        ("a_ratio", (0.1, 0.4), (), "a ratio (×)", (0.1, 0.4)),
        ("a_share", (-0.5, 0.5), (), "a share (%)", (-50, 50)),
        ("a_count", (0.0, 0.0), (), "a count", (0, 0)),
    ],
)
def test_an_axis_uses_the_unit_in_its_title(
    metric: str, values: tuple[float, ...], log: tuple[str, ...], title: str, ends: object
) -> None:
    cells = [small_cell({"x": x}, {metric: value}) for x, value in enumerate(values, 1)]
    (panel,) = draw(Chart("x", (metric,), (), log), cells).panels
    y = panel.chart["options"]["scales"]["y"]
    assert (y["title"]["text"], (y["suggestedMin"], y["suggestedMax"])) == (title, ends)
    assert tuple(point["y"] for point in panel.datasets[0]["data"]) == ends


@pytest.mark.parametrize(
    ("values", "log", "kind", "axis"),
    [
        (("one", "two"), (), "bar", "x"),
        (("one", "two"), ("y",), "line", "x"),
        ((1, 2), (), "line", "y"),
        ((1, 2), ("y",), "line", "y"),
    ],
)
def test_a_linear_axis_starts_at_zero(
    values: tuple[Label, ...], log: tuple[str, ...], kind: str, axis: str
) -> None:
    cells = [small_cell({"x": x}, {"a_ms": 5.0}) for x in values]
    (panel,) = draw(Chart("x", ("a_ms",), (), log), cells).panels
    assert panel.chart["type"] == kind
    assert panel.chart["options"]["scales"][axis]["beginAtZero"] is not bool(log)


def test_metrics_have_fixed_colours() -> None:
    cells = [
        small_cell({"x": x}, {"a_ms": 1.0, "sketch_ms": 1.0, "recapture_ms": 1.0}) for x in (1, 2)
    ]
    (panel,) = draw(Chart("x", ("a_ms", "recapture_ms", "sketch_ms")), cells).panels
    colors = {line["label"]: line["color"] for line in panel.datasets}
    assert colors == {"a": "w2", "recapture": "w1", "with sketch": "w0"}


def test_hidden_points_are_counted() -> None:
    cells = [
        small_cell({"x": x}, {"a_ms": value})
        for x, value in ((1, 0.0), (2, 5.0), (0, 3.0), (3, math.nan))
    ]
    assert draw(Chart("x", ("a_ms",), (), ("x", "y")), cells).hidden == 3
    assert draw(Chart("x", ("a_ms",)), cells).hidden == 1


def test_a_log_axis_has_no_whisker_down_to_zero() -> None:
    cells = [Cell("f", {"x": x}, {"a_ms": Metric(2.0, 0.0, 3.0, 5)}) for x in (1, 2)]
    (panel,) = draw(Chart("x", ("a_ms",), (), ("y",)), cells).panels
    point = panel.datasets[0]["data"][0]
    assert (point["low"], point["high"]) == (2.0, 3.0)
    assert point["text"] == "2 ms (0–3 ms in 5 runs)"


@pytest.mark.parametrize("make", [published_record, every_measure_record])
def test_every_number_is_drawn(make: Callable[[], Record]) -> None:
    record = make()
    for figure in record.figures:
        cells = record.cells_of(figure.name)
        drawing = draw(figure.chart, cells)
        points = sum(len(line["data"]) for panel in drawing.panels for line in panel.datasets)
        assert points == sum(name in cell.metrics for cell in cells for name in figure.chart.y)


FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-sync"),
    *("disable-background-networking", "disable-component-update", "disable-dev-shm-usage"),
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE_TEXT = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"

BLANK = """
return [...document.querySelectorAll("canvas[data-chart]")].filter((canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let at = 3; at < pixels.length; at += 4) drawn += pixels[at] > 0;
  return drawn < 300;
}).map((canvas) => canvas.getAttribute("aria-label"));
"""
FAINT = """
const channel = (part) => part <= 0.04045 ? part / 12.92 : Math.pow((part + 0.055) / 1.055, 2.4);
const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
const light = (parts) => parts.slice(0, 3).map((part) => channel(part / 255))
  .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
const behind = (element) => {
  for (let at = element; at; at = at.parentElement) {
    const parts = numbers(getComputedStyle(at).backgroundColor);
    if (parts.length < 4 || parts[3] > 0) return light(parts);
  }
  return light([255, 255, 255]);
};
return [...document.body.querySelectorAll("*")].filter((element) => {
  const told = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!told || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(element.tagName)) return false;
  const [a, b] = [light(numbers(getComputedStyle(element).color)), behind(element)];
  return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5;
}).map((element) => element.outerHTML.slice(0, 200));
"""

PAINTED = "requestAnimationFrame(() => requestAnimationFrame(arguments[0]));"
"""Calls back after painting."""


class Browser:
    def __init__(self, driver: Any, folder: Path) -> None:
        self.driver = driver
        self.folder = folder
        self.run = driver.execute_script

    def show(
        self, html: str, *, width: int = 1280, theme: str = "light", has_scripts: bool = True
    ) -> None:
        file = self.folder / "page.html"
        file.write_text(html, encoding="utf-8")
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.theme(theme)
        self.driver.get("about:blank")
        self.errors()
        self.driver.get(file.as_uri())
        # Charts get their size from the layout of the page, in the frame after loading.
        if has_scripts:
            self.driver.execute_async_script(PAINTED)

    def theme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def errors(self) -> list[dict[str, Any]]:
        """Return the console messages since the last call."""
        result: list[dict[str, Any]] = self.driver.get_log("browser")
        return result

    def picture(self) -> str:
        """Return the pixels of the first chart."""
        return str(self.run("return document.querySelector('canvas[data-chart]').toDataURL()"))

    def background(self) -> str:
        return str(self.run("return getComputedStyle(document.body).backgroundColor"))

    def press(self, selector: str, key: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(key)

    def open_tables(self) -> None:
        self.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")

    def problems(self) -> list[object]:
        """Return blank charts, and errors on the console."""
        return [*self.run(BLANK), *self.errors()]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver_path = shutil.which("chromedriver")
    if executable is None or driver_path is None:
        pytest.skip("there is no Chromium with its chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = executable
    folder = tmp_path_factory.mktemp("browser")
    for flag in (*FLAGS, f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        # Selenium would look for drivers on the network and report usage.
        patch.setitem(os.environ, "SE_OFFLINE", "true")
        patch.setitem(os.environ, "SE_AVOID_STATS", "true")
        driver = webdriver.Chrome(options, webdriver.ChromeService(driver_path))
    try:
        yield Browser(driver, folder)
    finally:
        driver.quit()


@pytest.mark.slow
def test_charts_respond_to_keys_and_the_pointer(browser: Browser, html: str) -> None:
    browser.show(html)
    assert browser.problems() == []
    assert browser.run("return document.querySelectorAll('canvas[data-chart]').length") > 10
    assert browser.run("return performance.getEntriesByType('resource').length") == 0
    before = browser.picture()
    browser.press(".keys input", " ")
    assert browser.picture() != before
    browser.press(".keys input", " ")
    assert browser.picture() == before
    canvas = browser.driver.find_element("css selector", "canvas[data-chart]")
    browser.run("document.documentElement.style.scrollBehavior = 'auto'")
    browser.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    actions = importlib.import_module("selenium.webdriver.common.action_chains")
    actions.ActionChains(browser.driver).move_to_element(canvas).perform()
    waiting = importlib.import_module("selenium.webdriver.support.wait")
    assert waiting.WebDriverWait(browser.driver, 5).until(lambda _: browser.picture() != before)


@pytest.mark.slow
def test_colours_follow_the_system_but_print_is_light(browser: Browser, html: str) -> None:
    def state() -> tuple[str, str, bool]:
        is_open = "return [...document.querySelectorAll('details')].every((table) => table.open)"
        return browser.background(), browser.picture(), browser.run(is_open)

    browser.show(html, theme="dark")
    dark = state()
    browser.theme("light")
    light = state()
    assert all(before != after for before, after in zip(dark[:2], light[:2], strict=True))
    browser.theme("dark")
    assert state() == dark
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert state()[1:] == (light[1], True)
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert state() == dark
    assert not dark[2]
    assert browser.errors() == []
    browser.open_tables()
    for theme in ("dark", "light"):
        browser.theme(theme)
        assert browser.run(FAINT) == [], theme


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 800])
def test_a_narrow_page_does_not_scroll_sideways(browser: Browser, html: str, width: int) -> None:
    browser.show(html, width=width)
    browser.open_tables()
    assert browser.run("return document.documentElement.scrollWidth") <= width
    tables = "return [...document.querySelectorAll('.scroll')]"
    assert browser.run(f"{tables}.some((box) => box.scrollWidth > box.clientWidth)")
    assert browser.run(BLANK) == []


@pytest.mark.slow
def test_a_phone_shows_break_even_and_scroll_shadows(browser: Browser, html: str) -> None:
    browser.show(html, width=390)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    right = """
      const box = [...document.querySelectorAll("#summary .scroll")].pop();
      const head = [...box.querySelectorAll("th")].find((one) => one.textContent === "Break-even");
      return head.getBoundingClientRect().right - box.getBoundingClientRect().right;
    """
    assert browser.run(right) < 0
    edges = "return getComputedStyle(document.querySelector('.scroll')).backgroundAttachment"
    assert browser.run(edges) == "local, local, scroll, scroll"


@pytest.mark.slow
def test_tables_do_not_need_scripts(browser: Browser, html: str) -> None:
    switch = "Emulation.setScriptExecutionDisabled"
    browser.driver.execute_cdp_cmd(switch, {"value": True})
    try:
        browser.show(html, has_scripts=False)
        text_shown = browser.driver.find_element("css selector", "body").text
        charts = browser.driver.find_elements("css selector", ".charts")
        assert not any(chart.is_displayed() for chart in charts)
    finally:
        browser.driver.execute_cdp_cmd(switch, {"value": False})
    for text in (
        "Charts need JavaScript",
        "When not to use a sketch",
        "500,000 1,000 0.01 % delete_old",
    ):
        assert text in text_shown


@pytest.mark.slow
def test_hostile_text_runs_nothing(browser: Browser) -> None:
    text = HOSTILE_TEXT
    metrics = {"y_ms": Metric(2.0, 1.0, 3.0, 3)}
    cells = [
        Cell(text, {"x": x, text: label}, metrics, note=text)
        for label in (text, "calm")
        for x in (text, "other")
    ]
    facts = {"title": text, "failures": (text,), "machine": {text: text}}
    browser.show(
        render_report(small_record(*cells, figures=(hostile_figure(text, "y_ms"),), **facts))
    )
    assert browser.run("return window.ran === undefined")
    assert browser.problems() == []


ODD_COSTS: list[dict[Label, float]] = [
    {},
    {10: 5.0},
    {0: 0.0, 5: 0.0},
    {10: 5.0, 20: 5.0},
    {"a" * 200: 1e-9, "b": 1e12},
    {-5: -5.0, 5: 5.0},
]


@pytest.mark.slow
def test_odd_costs_have_charts(browser: Browser) -> None:
    """Each in one figure with linear axes and one with logarithmic axes."""
    figures, cells = [], []
    for i, (costs, log) in enumerate(product(ODD_COSTS, ((), ("x", "y")))):
        chart = Chart("changes", ("maintain_ms",), (), log)
        figures.append(Figure(f"f{i}", f"Figure {i}", "", chart))
        cells += [small_cell({"changes": x}, {"maintain_ms": c}, f"f{i}") for x, c in costs.items()]
    browser.show(render_report(small_record(*cells, figures=tuple(figures))), width=390)
    assert browser.problems() == []
    assert browser.run("return document.documentElement.scrollWidth") <= 390
