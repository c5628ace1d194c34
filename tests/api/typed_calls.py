"""Calls as users write them, checked by `make type` and never run."""

from typing import assert_type

import impctl
from impctl.errors import ImpctlError


def use() -> None:
    with impctl.open("w.yaml", policy="strict", store="kept") as sales:
        assert_type(sales, impctl.OpenWorkload)
        assert_type(sales.capture("q"), tuple[impctl.CaptureResult, ...])
        assert_type(sales.maintain(), tuple[impctl.MaintainResult, ...])
        assert_type(sales.maintain(due=True, interval="1h"), tuple[impctl.MaintainResult, ...])
        assert_type(sales.plan("q"), tuple[impctl.PlanResult, ...])
        assert_type(sales.plan(due=True, interval=60), tuple[impctl.DueResult, ...])
        assert_type(sales.simulate(trigger=["rows: 5"]), impctl.SimulateResult)
        assert_type(sales.status(), tuple[impctl.StatusResult, ...])
        assert_type(sales.verify(results=True), tuple[impctl.VerifyResult, ...])
        assert_type(sales.explain("q"), tuple[impctl.ExplainResult, ...])
        assert_type(sales.rewrite("q", params={"low": 10}).sql, str)
        assert_type(sales.query("q"), impctl.QueryResult)
        sales.plan(interval=60)  # type: ignore[call-overload]
        sales.capture(1)  # type: ignore[arg-type]
        sales.rewrite("q", params={"low": None})  # type: ignore[dict-item]
        try:
            sales.maintain()
        except impctl.QueriesFailedError as failed:
            assert_type(failed.failures["q"], ImpctlError)
    impctl.open("w.yaml", policy="lax")  # type: ignore[arg-type]
    impctl.opne("w.yaml")  # type: ignore[attr-defined]
