"""impctl: provenance sketches over Delta tables, captured once and maintained incrementally.

Programs start with `impctl.open` (docs/python.md); errors are in `impctl.errors`.
Law: importing the package imports only this file and the version; a name is loaded when it is
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from impctl.version import __version__ as __version__

if TYPE_CHECKING:
    from impctl.api.session import OpenWorkload as OpenWorkload
    from impctl.api.session import open as open
    from impctl.errors import ImpctlError as ImpctlError
    from impctl.errors import ImpctlWarning as ImpctlWarning
    from impctl.errors import QueriesFailedError as QueriesFailedError
    from impctl.service.results import CaptureResult as CaptureResult
    from impctl.service.results import ChangesResult as ChangesResult
    from impctl.service.results import DueResult as DueResult
    from impctl.service.results import ExplainResult as ExplainResult
    from impctl.service.results import MaintainResult as MaintainResult
    from impctl.service.results import PlanResult as PlanResult
    from impctl.service.results import QueryFiles as QueryFiles
    from impctl.service.results import QueryResult as QueryResult
    from impctl.service.results import RewriteResult as RewriteResult
    from impctl.service.results import SimulateResult as SimulateResult
    from impctl.service.results import StatusResult as StatusResult
    from impctl.service.results import TableFiles as TableFiles
    from impctl.service.results import VerifyResult as VerifyResult
    from impctl.service.results import WhyResult as WhyResult
    from impctl.service.results import WithoutResult as WithoutResult
    from impctl.service.settings import Policy as Policy
else:
    _HOMES = {
        **dict.fromkeys(("OpenWorkload", "open"), "impctl.api.session"),
        **dict.fromkeys(("ImpctlError", "ImpctlWarning", "QueriesFailedError"), "impctl.errors"),
        **dict.fromkeys(
            (
                *("CaptureResult", "ChangesResult", "DueResult", "ExplainResult", "MaintainResult"),
                *("PlanResult", "QueryFiles", "QueryResult", "RewriteResult", "SimulateResult"),
                *("StatusResult", "TableFiles", "VerifyResult", "WhyResult", "WithoutResult"),
            ),
            "impctl.service.results",
        ),
        "Policy": "impctl.service.settings",
    }

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module `impctl` has no attribute `{name}`")
        from importlib import import_module

        result = globals()[name] = getattr(import_module(_HOMES[name]), name)
        return result

    def __dir__() -> list[str]:
        return sorted({*globals(), *_HOMES})
