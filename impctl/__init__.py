"""impctl: provenance sketches over Delta tables, captured once and maintained incrementally.

`impctl.open` is the way in for programs (docs/python.md); errors are in `impctl.errors`.
Law: importing the package imports nothing but this file and the version; a name is loaded when it
is first used.
Out of scope: everything else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.version import __version__ as __version__

if TYPE_CHECKING:
    from impctl.api.open_workload import OpenWorkload as OpenWorkload
    from impctl.api.opening import open as open
    from impctl.app.results.changed import ChangesResult as ChangesResult
    from impctl.app.results.due import DueResult as DueResult
    from impctl.app.results.explanations import ExplainResult as ExplainResult
    from impctl.app.results.foreseen import PlanResult as PlanResult
    from impctl.app.results.listed_files import QueryFiles as QueryFiles
    from impctl.app.results.listed_files import TableFiles as TableFiles
    from impctl.app.results.results import CaptureResult as CaptureResult
    from impctl.app.results.results import MaintainResult as MaintainResult
    from impctl.app.results.results import QueryResult as QueryResult
    from impctl.app.results.results import RewriteResult as RewriteResult
    from impctl.app.results.results import StatusResult as StatusResult
    from impctl.app.results.results import VerifyResult as VerifyResult
    from impctl.app.results.simulated import SimulateResult as SimulateResult
    from impctl.app.results.why import WhyResult as WhyResult
    from impctl.app.results.why import WithoutResult as WithoutResult
    from impctl.app.workbench.settings import Policy as Policy
    from impctl.errors import ImpctlError as ImpctlError
    from impctl.errors import ImpctlWarning as ImpctlWarning
    from impctl.errors import QueriesFailedError as QueriesFailedError
else:
    _HOMES = {
        "OpenWorkload": "impctl.api.open_workload",
        "open": "impctl.api.opening",
        "CaptureResult": "impctl.app.results.results",
        "ChangesResult": "impctl.app.results.changed",
        "DueResult": "impctl.app.results.due",
        "ExplainResult": "impctl.app.results.explanations",
        "MaintainResult": "impctl.app.results.results",
        "PlanResult": "impctl.app.results.foreseen",
        "QueryFiles": "impctl.app.results.listed_files",
        "TableFiles": "impctl.app.results.listed_files",
        "QueryResult": "impctl.app.results.results",
        "RewriteResult": "impctl.app.results.results",
        "SimulateResult": "impctl.app.results.simulated",
        "StatusResult": "impctl.app.results.results",
        "VerifyResult": "impctl.app.results.results",
        "WhyResult": "impctl.app.results.why",
        "WithoutResult": "impctl.app.results.why",
        "Policy": "impctl.app.workbench.settings",
        "ImpctlError": "impctl.errors",
        "ImpctlWarning": "impctl.errors",
        "QueriesFailedError": "impctl.errors",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module `impctl` has no attribute `{name}`")
        from importlib import import_module

        result = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return result

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
