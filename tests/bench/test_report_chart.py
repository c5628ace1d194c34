from __future__ import annotations

import math

from impctl.bench.record import Chart, Metric
from impctl.bench.report_chart import draw
from tests.bench.paper_records import papers_record, small_cell


def test_a_line_per_group_and_metric_sorted_along_x() -> None:
    chart = Chart("changes", ("maintain_ms", "recapture_ms"), ("groups",), ("x", "y"))
    cells = [
        small_cell({"groups": groups, "changes": x}, {"maintain_ms": x, "recapture_ms": 9.0})
        for groups in (500, 50)
        for x in (100, 10)
    ]
    drawing = draw(chart, cells)
    assert drawing.groups == ("50", "500")
    assert drawing.ordered
    assert drawing.group_title == "groups"
    assert drawing.metrics == ("maintain", "recapture")
    (panel,) = drawing.panels
    assert len(panel.lines) == 4
    assert [point.x for point in panel.lines[0].points] == [10, 100]
    assert (panel.y.low, panel.y.high, panel.y.log) == (9, 100, True)
    assert (drawing.x.low, drawing.x.high, drawing.hidden) == (10, 100, 0)


def test_text_on_x_makes_categories_in_the_order_they_came() -> None:
    cells = [small_cell({"batch": batch}, {"maintain_ms": 1.0}) for batch in ("100", "20", "lazy")]
    drawing = draw(Chart("batch", ("maintain_ms",)), cells)
    assert drawing.categories == ("100", "20", "lazy")
    assert [point.x for point in drawing.panels[0].lines[0].points] == [0, 1, 2]


def test_a_single_number_on_x_is_a_category() -> None:
    drawing = draw(Chart("groups", ("a_ms",)), [small_cell({"groups": 5000}, {"a_ms": 1.0})])
    assert drawing.categories == ("5,000",)


def test_units_and_labels_on_no_axis_have_panels_of_their_own() -> None:
    cells = [
        small_cell({"x": x, "kind": kind, "share": x / 100}, {"a_ms": x, "b_bytes": 10.0 * x})
        for kind in ("one", "two")
        for x in (1, 2)
    ]
    drawing = draw(Chart("x", ("a_ms", "b_bytes")), cells)
    assert [(panel.title, panel.y.unit) for panel in drawing.panels] == [
        ("a: kind one", "ms"),
        ("a: kind two", "ms"),
        ("b: kind one", "bytes"),
        ("b: kind two", "bytes"),
    ]
    assert {(panel.y.low, panel.y.high) for panel in drawing.panels} == {(1, 2), (10, 20)}


def test_what_has_no_place_is_counted() -> None:
    cells = [
        small_cell({"x": x}, {"a_ms": value})
        for x, value in ((1, 0.0), (2, 5.0), (0, 3.0), (3, math.nan))
    ]
    assert draw(Chart("x", ("a_ms",), (), ("x", "y")), cells).hidden == 3
    assert draw(Chart("x", ("a_ms",)), cells).hidden == 1


def test_a_low_end_of_zero_draws_no_whisker_on_a_logarithmic_axis() -> None:
    cells = [small_cell({"x": x}, {}) for x in (1, 2)]
    metric = {"a_ms": Metric(2.0, 0.0, 3.0, 5)}
    cells = [type(cell)(cell.figure, cell.labels, metric) for cell in cells]
    point = draw(Chart("x", ("a_ms",), (), ("y",)), cells).panels[0].lines[0].points[0]
    assert (point.low, point.high) == (2.0, 3.0)
    assert point.text == "2 ms (0–3 ms in 5 runs)"


def test_every_number_of_the_papers_record_is_drawn() -> None:
    record = papers_record()
    for figure in record.figures:
        cells = record.cells_of(figure.name)
        drawing = draw(figure.chart, cells)
        points = sum(len(line.points) for panel in drawing.panels for line in panel.lines)
        assert points == sum(name in cell.metrics for cell in cells for name in figure.chart.y)
