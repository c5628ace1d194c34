"""The page in a real browser: drawn, readable, within a phone's width, without any error."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from impctl.bench.record import Cell, Chart, Figure, Metric
from impctl.bench.report import render_report
from tests.bench.every_measure import every_measure_record
from tests.bench.paper_records import papers_record, small_cell, small_record

pytestmark = pytest.mark.slow

FLAGS = (
    "headless",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "disable-dev-shm-usage",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "</script><script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"

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

PAINTED = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(done));
"""
"""Calls back when what was there has been painted."""


class Shown:
    """A browser with one page in it."""

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
        # Charts take their size from the page when it is laid out: in the frame after loading.
        if has_scripts:
            self.driver.execute_async_script(PAINTED)

    def theme(self, name: str) -> None:
        feature = {"name": "prefers-color-scheme", "value": name}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})

    def errors(self) -> list[dict[str, Any]]:
        """What the console was told since it was last asked."""
        result: list[dict[str, Any]] = self.driver.get_log("browser")
        return result

    def picture(self) -> str:
        """The pixels of the first chart."""
        return str(self.run("return document.querySelector('canvas[data-chart]').toDataURL()"))

    def background(self) -> str:
        return str(self.run("return getComputedStyle(document.body).backgroundColor"))

    def press(self, selector: str, key: str) -> None:
        self.driver.find_element("css selector", selector).send_keys(key)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    server = shutil.which("chromedriver")
    if browser is None or server is None:
        pytest.skip("there is no Chromium with its chromedriver on the path")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    folder = tmp_path_factory.mktemp("browser")
    for flag in (*FLAGS, f"user-data-dir={folder / 'profile'}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with pytest.MonkeyPatch.context() as patch:
        # Selenium would look for drivers on the network and report that it did.
        patch.setitem(os.environ, "SE_OFFLINE", "true")
        patch.setitem(os.environ, "SE_AVOID_STATS", "true")
        driver = webdriver.Chrome(options, webdriver.ChromeService(server))
    try:
        yield Shown(driver, folder)
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def html() -> str:
    return render_report(papers_record())


def test_every_chart_is_drawn_and_nothing_complains(shown: Shown, html: str) -> None:
    shown.show(html)
    assert shown.errors() == []
    assert shown.run("return document.querySelectorAll('canvas[data-chart]').length") > 10
    assert shown.run(BLANK) == []
    assert shown.run("return performance.getEntriesByType('resource').length") == 0


def test_the_theme_follows_the_system(shown: Shown, html: str) -> None:
    shown.show(html, theme="dark")
    dark, picture = shown.background(), shown.picture()
    shown.theme("light")
    assert shown.background() != dark
    assert shown.picture() != picture
    shown.theme("dark")
    assert (shown.background(), shown.picture()) == (dark, picture)
    assert shown.errors() == []


def test_paper_has_light_colours_and_open_tables(shown: Shown, html: str) -> None:
    is_open = "return [...document.querySelectorAll('details')].every((table) => table.open)"
    shown.show(html, theme="light")
    light = shown.picture()
    shown.show(html, theme="dark")
    dark = shown.picture()
    assert not shown.run(is_open)
    shown.run("dispatchEvent(new Event('beforeprint'))")
    assert shown.picture() == light
    assert shown.run(is_open)
    shown.run("dispatchEvent(new Event('afterprint'))")
    assert shown.picture() == dark
    assert not shown.run(is_open)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_stands_out(shown: Shown, html: str, theme: str) -> None:
    shown.show(html, theme=theme)
    shown.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert shown.run(FAINT) == []


@pytest.mark.parametrize("width", [320, 390, 800])
def test_a_narrow_page_never_scrolls_sideways(shown: Shown, html: str, width: int) -> None:
    shown.show(html, width=width)
    shown.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert shown.run("return document.documentElement.scrollWidth") <= width
    tables = "return [...document.querySelectorAll('.scroll')]"
    assert shown.run(f"{tables}.some((box) => box.scrollWidth > box.clientWidth)")
    assert shown.run(BLANK) == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_measure_with_all_its_metrics_is_drawn(shown: Shown, theme: str) -> None:
    record = every_measure_record()
    shown.show(render_report(record), theme=theme)
    assert shown.run(BLANK) == []
    assert shown.errors() == []
    assert shown.run("return document.querySelectorAll('.empty').length") == 0
    drawn = shown.run("return [...document.querySelectorAll('.charts')].map((one) => "
                      "one.querySelectorAll('canvas[data-chart]').length > 0)")  # fmt: skip
    assert drawn == [True] * len(record.figures)
    shown.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert shown.run(FAINT) == []


def test_a_phone_shows_break_even_and_that_the_table_goes_on(shown: Shown, html: str) -> None:
    shown.show(html, width=390)
    right = """
      const box = [...document.querySelectorAll("#summary .scroll")].pop();
      const head = [...box.querySelectorAll("th")].find((one) => one.textContent === "Break-even");
      return head.getBoundingClientRect().right - box.getBoundingClientRect().right;
    """
    assert shown.run(right) < 0
    edges = "return getComputedStyle(document.querySelector('.scroll')).backgroundAttachment"
    assert shown.run(edges) == "local, local, scroll, scroll"


def test_a_legend_hides_and_shows_by_key(shown: Shown, html: str) -> None:
    shown.show(html)
    before = shown.picture()
    shown.press(".keys input", " ")
    assert shown.picture() != before
    shown.press(".keys input", " ")
    assert shown.picture() == before


def test_the_pointer_brings_a_tooltip(shown: Shown, html: str) -> None:
    shown.show(html)
    before = shown.picture()
    canvas = shown.driver.find_element("css selector", "canvas[data-chart]")
    shown.run("document.documentElement.style.scrollBehavior = 'auto'")
    shown.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
    actions = importlib.import_module("selenium.webdriver.common.action_chains")
    actions.ActionChains(shown.driver).move_to_element(canvas).perform()
    waiting = importlib.import_module("selenium.webdriver.support.wait")
    assert waiting.WebDriverWait(shown.driver, 5).until(lambda _: shown.picture() != before)


def test_without_scripts_the_tables_are_there(shown: Shown, html: str) -> None:
    switch = "Emulation.setScriptExecutionDisabled"
    shown.driver.execute_cdp_cmd(switch, {"value": True})
    try:
        shown.show(html, has_scripts=False)
        told = shown.driver.find_element("css selector", "body").text
        charts = shown.driver.find_elements("css selector", ".charts")
        assert not any(chart.is_displayed() for chart in charts)
    finally:
        shown.driver.execute_cdp_cmd(switch, {"value": False})
    assert "Charts need JavaScript" in told
    assert "When not to use a sketch" in told
    assert "500,000 500 0.01 %" in told


def test_hostile_text_runs_nothing(shown: Shown) -> None:
    figure = Figure(HOSTILE, HOSTILE, HOSTILE, Chart("x", ("y_ms",), (HOSTILE,)), HOSTILE, HOSTILE)
    cells = [
        Cell(HOSTILE, {"x": x, HOSTILE: text}, {"y_ms": Metric(2.0, 1.0, 3.0, 3)}, note=HOSTILE)
        for text in (HOSTILE, "calm")
        for x in (HOSTILE, "other")
    ]
    facts = {"title": HOSTILE, "failures": (HOSTILE,), "machine": {HOSTILE: HOSTILE}}
    shown.show(render_report(small_record(*cells, figures=(figure,), **facts)))
    assert shown.run("return window.ran === undefined")
    assert shown.errors() == []
    assert shown.run(BLANK) == []


@pytest.mark.parametrize("log", [(), ("x", "y")])
@pytest.mark.parametrize(
    "cells",
    [
        (),
        (small_cell({"changes": 10}, {"maintain_ms": 5.0}),),
        (
            small_cell({"changes": 0}, {"maintain_ms": 0.0}),
            small_cell({"changes": 5}, {"maintain_ms": 0.0}),
        ),
        (
            small_cell({"changes": 10}, {"maintain_ms": 5.0}),
            small_cell({"changes": 20}, {"maintain_ms": 5.0}),
        ),
        (
            small_cell({"changes": "a" * 200}, {"maintain_ms": 1e-9}),
            small_cell({"changes": "b"}, {"maintain_ms": 1e12}),
        ),
        (
            small_cell({"changes": -5}, {"maintain_ms": -5.0}),
            small_cell({"changes": 5}, {"maintain_ms": 5.0}),
        ),
    ],
)
def test_odd_records_are_drawn(shown: Shown, cells: tuple[Cell, ...], log: tuple[str, ...]) -> None:
    chart = Chart("changes", ("maintain_ms",), (), log)
    shown.show(render_report(small_record(*cells, chart=chart)), width=390)
    assert shown.errors() == []
    assert shown.run(BLANK) == []
    assert shown.run("return document.documentElement.scrollWidth") <= 390
