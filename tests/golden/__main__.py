"""Records what commands print: `python -m tests.golden wording|values [NAME...] [--spark]`.

`wording` after texts were changed on purpose: read the difference in git, it is what users will
see. `values` only after what commands do was changed on purpose: a field that is new or gone,
another exit code, another answer. A field that merely has a new name needs a line in `renames.yaml`
instead; when values are recorded, that map is emptied.

Without names everything is recorded but what needs Spark, with `--spark` that alone.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.golden.recorded import Recorded, names, record_of
from tests.golden.worlds import Worlds


def main() -> None:
    """Write the records that were asked for, and say which."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=__doc__)
    parser.add_argument("kind", choices=["wording", "values"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--spark", action="store_true", help="those that start Spark")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        for name in asked.names or names(spark=asked.spark):
            record = record_of(name, worlds)
            getattr(Recorded(name), f"write_{asked.kind}")(record)
            print(f"{asked.kind} of {name}")  # noqa: T201


if __name__ == "__main__":
    main()
