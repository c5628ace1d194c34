"""Record golden files: `python -m tests.golden wording|values [NAME...] [--spark]`.

Record `wording` after changing texts, and read the diff: it is what users will see.

Record `values` rarely, only after an intended change of behaviour: a field that is added or
removed, another exit code, another answer. A renamed field or code needs an entry in `renames.yaml`
instead. When you do record values, remove the entries that they then contain.

Without names, everything that runs without Spark is recorded; with `--spark`, the rest.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.golden.records import Golden, json_text
from tests.golden.scripts import Worlds, names, record_of


def main() -> None:
    """Write the files that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("kind", choices=["wording", "values"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="a script, bad-inputs or help")
    parser.add_argument("--spark", action="store_true", help="what needs Spark instead")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(Path(folder))
        for name in arguments.names or names(spark=arguments.spark):
            record = record_of(name, worlds)
            file, text = Golden(name).wording, record.wording
            if arguments.kind == "values":
                file, text = Golden(name).values, json_text(record.values, packed=True) + "\n"
            file.write_text(text, encoding="utf-8")
            print(f"recorded {arguments.kind} of {name}")  # noqa: T201


if __name__ == "__main__":
    main()
