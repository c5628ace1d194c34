"""Characters of the log that deltalake may have read as others.

Law: a text that is not unsure is the one in the log. deltalake 1.6.6 (Arrow's reader of JSON) puts
an escaped pair of surrogates together by OR where it has to add: of the planes beyond the first,
every second comes out as the one below. So a character of an odd plane may be one of the next, and
a text is never read too great.
Out of scope: texts in data files, which are no JSON.
"""

from __future__ import annotations


def is_unsure(text: str) -> bool:
    """Whether the text may be another, greater one in the log."""
    return not text.isascii() and any(ord(char) >> 16 & 1 for char in text)
