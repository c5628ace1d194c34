"""Text of a record as HTML.

Law: everything is escaped first; only what stands between two backticks becomes code.
Out of scope: structure.
"""

from __future__ import annotations

import re
from html import escape

_CODE = re.compile(r"`([^`]+)`")


def prose(text: str) -> str:
    """A sentence, what stands in backticks as code."""
    return _CODE.sub(r"<code>\1</code>", escape(text))
