"""Running the command line inside the test process, with fake use cases."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from msgspec import Struct, field

from impctl.cli.application import build_app
from impctl.cli.boundary import run
from impctl.service.results import Outcome
from impctl.service.settings import ENVVARS


class Ran(Struct, dict=True):
    """Exit code and output of a run of the command line."""

    code: int
    stdout: str
    stderr: str


class Terminal(io.StringIO):
    """A stream in memory that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class FakeApp(Struct, dict=True):
    """Use cases that record their calls and return or raise `answer`."""

    answer: Any = field(default_factory=Outcome)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    settings: list[Any] = field(default_factory=list)
    steps: tuple[str, ...] = ()
    finished: tuple[Any, ...] = ()
    """Results that are reported one by one."""
    closed: int = 0

    def use_case(self, name: str) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.calls.append((name, args, kwargs))
            if isinstance(self.answer, BaseException):
                raise self.answer
            return self.answer

        return called

    @contextmanager
    def open_context(self, settings: Any, reporter: Any) -> Any:
        self.settings.append(settings)
        for number, message in enumerate(self.steps, start=1):
            reporter.step(message, number, len(self.steps))
        for number, result in enumerate(self.finished, start=1):
            reporter.finished(result, number, len(self.finished))
        try:
            yield "the context"
        finally:
            self.closed += 1


USE_CASES = {
    "service.capture": ("capture",),
    "service.apply": ("apply",),
    "service.plan": ("plan",),
    "service.schedule.simulate": ("simulate",),
    "service.maintain": ("maintain",),
    "service.schedule.daemon": ("maintain_due", "maintain_point", "plan_due"),
    "service.rewrite": ("rewrite",),
    "service.query": ("query",),
    "service.changes": ("changes",),
    "service.why": ("why",),
    "service.status": ("status",),
    "service.explain": ("check", "explain", "schema_text"),
    "service.gc": ("gc",),
    "service.verify": ("verify",),
    "service.doctor": ("doctor",),
    "service.init": ("init", "init_demo"),
    "measure.files": ("generate", "compare_files", "report_file"),
    "measure.run": ("run_workload",),
}


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeApp:
    """Replaces every module with a use case, so that the real ones are not imported."""
    fake = FakeApp()
    for file, functions in USE_CASES.items():
        module = ModuleType(f"impctl.{file}")
        for function in functions:
            setattr(module, function, fake.use_case(function))
        monkeypatch.setitem(sys.modules, module.__name__, module)
    context: Any = ModuleType("impctl.service.context")
    context.open_context = fake.open_context
    monkeypatch.setitem(sys.modules, context.__name__, context)
    return fake


@pytest.fixture
def impctl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Runs the command line with these words, without environment variables of the outside."""
    for variable in [entry.name for entry in ENVVARS] + ["NO_COLOR", "FORCE_COLOR"]:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")

    def call(*words: str) -> Ran:
        code = run(build_app(), words)
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return call


@pytest.fixture
def show(fake: FakeApp, impctl: Callable[..., Ran]) -> Callable[..., Ran]:
    """Runs the command line with a use case that returns this result or outcome, or raises it."""

    def call(answer: Any, *words: str) -> Ran:
        is_whole = isinstance(answer, Outcome | BaseException | str)
        fake.answer = answer if is_whole else Outcome((answer,))
        return impctl(*words)

    return call
