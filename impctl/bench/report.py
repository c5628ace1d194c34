"""A record as one HTML page that needs nothing else: no network, no second file.

Law: the page is made from the record alone and is the same for the same record; without scripts it
still has the summary and every number; all text of the record is escaped, and the page's own policy
lets nothing load and no script run but those written here.
Out of scope: measuring, judging two records (`compare`), what is said (`summary`).
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any

from impctl.bench.band import LEAST, SINGLE
from impctl.bench.quantity import Unit, readable
from impctl.bench.report_figure import anchor, figure_section, measured_here
from impctl.bench.report_summary import facts, summary_section
from impctl.bench.summary import summarize
from impctl.values import dataclass

if TYPE_CHECKING:
    from impctl.bench.record import Record
    from impctl.bench.report_chart import Drawing

LIBRARY = "chart.js-4.6.1.umd.min.js"
"""The chart library beside the page's own script, in `assets`; its licence lies beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What stands on a page, all but `title` and `kicker` as HTML; `drawings` are by figure.

    `command` made it, `made` says from what; `how` heads the section that says how.
    """

    command: str
    kicker: str
    title: str
    facts: str
    summary: str
    contents: str
    figures: Sequence[str]
    drawings: Sequence[Drawing | None]
    how: str
    method: str
    made: str


def render_report(record: Record) -> str:
    """The whole page of a record."""
    result = [figure_section(record, figure, at) for at, figure in enumerate(record.figures)]
    page = Page(
        command="bench",
        kicker=record.suite,
        title=record.title or record.suite,
        facts=facts(record),
        summary=summary_section(summarize(record)),
        contents=_contents(record),
        figures=[html for html, _ in result],
        drawings=[drawing for _, drawing in result],
        how="How this was measured",
        method=f"{_method(record)}\n{_asset('method.html')}",
        made="from one record",
    )
    return render_page(page)


def render_page(page: Page) -> str:
    """The whole page."""
    data = embedded_json([_drawn(drawing) for drawing in page.drawings])
    style, theme = _asset("report.css"), _asset("theme.js")
    library, scales, script = _asset(LIBRARY), _asset("scales.js"), _asset("report.js")
    return Template(_asset("report.html")).substitute(
        policy=_policy((style,), (theme, library, scales, script)),
        command=page.command,
        title=escape(page.title),
        suite=escape(page.kicker),
        facts=page.facts,
        summary=page.summary,
        contents=page.contents,
        figures="\n".join(page.figures),
        how=escape(page.how),
        method=page.method,
        made=escape(page.made),
        style=style,
        theme=theme,
        data=data,
        library=library,
        scales=scales,
        script=script,
    )


def embedded_json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it closes one, no number is missing."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _drawn(drawing: Drawing | None) -> dict[str, Any] | None:
    return None if drawing is None else drawing.as_json()


def _asset(name: str) -> str:
    """A file of the page; a script that could end its own element is refused."""
    text = files("impctl.bench").joinpath("assets", name).read_text(encoding="utf-8").strip()
    if name.endswith(".js") and "</script" in text.lower():
        raise ValueError(f"Asset {name} would end its own script element")
    return text


def _policy(styles: Sequence[str], scripts: Sequence[str]) -> str:
    """Nothing loads; only the given texts run, each named by its hash."""
    named = {
        "style-src": " ".join(_hash(text) for text in styles),
        "script-src": " ".join(_hash(text) for text in scripts),
    }
    rules = "; ".join(f"{name} {hashes}" for name, hashes in named.items())
    return f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; {rules}"


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _contents(record: Record) -> str:
    if not record.figures:
        return ""
    rows = []
    for index, figure in enumerate(record.figures):
        told = measured_here(record, figure)
        first = f" <small>{escape(told[0])}</small>" if told else ""
        rows.append(f'<li><a href="#{anchor(index)}">{escape(figure.title)}</a>{first}</li>')
    return (
        '<nav aria-labelledby="contents-title"><h2 id="contents-title">Figures</h2>'
        f"<ol>{''.join(rows)}</ol></nav>"
    )


def _method(record: Record) -> str:
    noise = readable(record.noise, Unit.SHARE)
    least, single = readable(LEAST, Unit.SHARE), readable(SINGLE, Unit.SHARE)
    return (
        f"<p>Every number is the median of its runs ({record.repeat} were requested). The "
        "small print beside it, like the whiskers in a chart, shows the minimum and "
        "maximum. For a ratio, these are the worst of one side over the best of the other. "
        "Runs with equal values have no such range. Neither have values that are measured "
        "once, such as sizes and series of deletions. The table of each figure counts the "
        "runs. Recapture and capture ran at most three times.</p><p>A fixed piece of work "
        f"was timed before every figure and at the end. In this run it took up to {noise} "
        "longer than its fastest time. The noise of a figure is the difference between the "
        f"two times next to it, if the record has them, but at least {least}, and {single} "
        "if one side ran once. A smaller difference counts as neither won nor lost. So "
        "does one where a run of one side lies among the runs of the other.</p>"
    )
