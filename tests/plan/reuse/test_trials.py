"""Random templates, constants, tables and sketches: a sketch that is reused changes no answer.

IMPCTL_FUZZ multiplies the number of trials that `make check` and `make test-all` run.
"""

from __future__ import annotations

from collections.abc import Collection

from impctl.rules.optimize import apply_rules
from tests.plan.reuse.reuse_trials import ReuseTally, run_reuse_trial
from tests.support.random_cases import random_cases

_LARGER_LIMIT = 9_000_983
"""A seed whose query asks for more rows than the sketch holds; few do."""


@random_cases(
    80,
    290,
    2500,
    first=9_000_000,
    also="99 117 135 141 146 153 158 162 175 176 191 194 216 217 227 238 243 253 255 297 308 "
    "325 331 362 364 365 383 386 394 404 419 429 436 463 466 487 497 525 535 542 557 576 "
    "577 983",
)
def test_a_reused_sketch_never_changes_the_answer(cases: Collection[int]) -> None:
    """Neither of plans as they were read nor after the plan rules."""
    plain, ruled = ReuseTally(), ReuseTally()
    for seed in cases:
        run_reuse_trial(seed, plain)
        run_reuse_trial(seed, ruled, rewrite=apply_rules)
    assert min(plain.accepted_changed, ruled.accepted_changed) > len(cases) // 20
    assert plain.failed * 100 < max(len(cases), 100)
    if _LARGER_LIMIT in cases:
        assert any("LIMIT asks for" in reason for reason in plain.refusals)
