"""Every mutant can be applied: its function exists and has the old text exactly once."""

from __future__ import annotations

from tests.mutants.mutants import StaleMutantError, read_mutants
from tests.support.sources import ROOT


def test_all_mutants_are_valid() -> None:
    stale = []
    mutants = read_mutants()
    for mutant in sorted(mutants, key=lambda mutant: mutant.file):  # parses each file once
        try:
            mutant.applied((ROOT / mutant.file).read_text(encoding="utf-8"))
        except (StaleMutantError, FileNotFoundError) as error:
            stale.append(str(error))
    assert not stale, "\n".join(stale)
    assert len({mutant.name for mutant in mutants}) == len(mutants) >= 353
