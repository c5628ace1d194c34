"""Messages of errors where the query they are about has just been named.

Law: the query is named once; what the message says of it is the same, and one that is about
something else stays as it is. Out of scope: how failures of several queries are led
(`cli.output.errors`).
"""

from __future__ import annotations

import re


def named_before(query: str, message: str) -> str:
    """The message as the end of a sentence that begins with the query's name."""
    name = f"[Qq]uery `{re.escape(query)}`"
    message = re.sub(rf"^{name}(?!\w)", "it", message)
    message = re.sub(rf"^The (\w+) of {name}", r"its \1", message)
    return re.sub(name, "the query", message)
