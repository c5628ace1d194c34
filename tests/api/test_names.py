"""The package's names: the same for type checkers, at run time, and in the documents."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

import pytest

import impctl
from impctl import errors

ROOT = Path(__file__).parents[2]

SNIPPET = """\
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
"""


def names_for_type_checkers() -> dict[str, str]:
    tree = ast.parse((ROOT / "impctl" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        alias.name: str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_names_are_the_same_at_run_time() -> None:
    for name, module in names_for_type_checkers().items():
        result = getattr(impctl, name)
        assert result is getattr(import_module(module), name)
        assert name in dir(impctl)
    with pytest.raises(AttributeError):
        impctl.opne  # type: ignore[attr-defined]  # noqa: B018


def test_every_name_is_documented() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    for name in names_for_type_checkers():
        assert f"`impctl.{name}`" in page


def test_every_error_is_in_the_tree() -> None:
    drawn = str(errors.__doc__)
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, errors.ImpctlError | Warning):
            assert name in drawn, name


@pytest.mark.slow
def test_strict_type_checkers_see_the_types(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mypy import api

    monkeypatch.setenv("MYPY_CONFIG_FILE_DIR", str(ROOT))  # mypy sets it and leaves it set
    file = tmp_path / "snippet.py"
    file.write_text(SNIPPET)
    options = ["--strict", "--config-file", str(ROOT / "pyproject.toml")]
    shown, problems, code = api.run([*options, "--cache-dir", str(ROOT / ".mypy_cache"), str(file)])
    assert (shown, problems, code) == ("Success: no issues found in 1 source file\n", "", 0)
