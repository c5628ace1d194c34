"""What `check` found of a query, as lines of text, and one line that sums a run up.

Law: a reason that several attributes share is said once, with all of them before it.
Out of scope: JSON; the other results (`cli.output.text`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from impctl.cli.output.explain import answer_texts, attribute_lines
from impctl.cli.output.wording import mode_text
from impctl.cli.output.wrapped import wrapped
from impctl.errors import count_text
from impctl.service.results import SKETCH_NONE, CheckResult
from impctl.service.text import plain

_NO_SKETCH = "no sketch possible"


def check_lines(result: CheckResult, width: int | None) -> list[str]:
    """Supported or not, how it would be maintained, its answer if it is to be kept, attributes."""
    lines = [plain(f"{result.query}: {check_word(result)}")]
    place = "" if result.place is None else f" ({result.place})"
    for text in (f"{result.reason}{place}", "" if result.hint is None else f"hint: {result.hint}"):
        lines += wrapped(plain(text), width, "  ", "    ") if text else []
    for text in answer_texts(result.answer, result.answered):
        lines += wrapped(plain(text), width, "  ", "    ")
    return lines + attribute_lines(result.candidates, width)


def check_word(result: CheckResult) -> str:
    """How the query stands, in a few words."""
    if result.mode == SKETCH_NONE:
        return "without a sketch"
    return f"supported, {mode_text(result.mode or '')}" if result.supported else _NO_SKETCH


def summed_up(words: Sequence[str]) -> str:
    """`3 queries: 2 supported, exact; 1 no sketch possible`, the commonest first."""
    counted = Counter(words).most_common()
    said = "; ".join(f"{count:,} {word}" for word, count in counted)
    return f"{count_text(len(words), 'query', 'queries')}: {said}"
