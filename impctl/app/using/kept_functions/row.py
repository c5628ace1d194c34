"""Rows of tables that derive a row of an answer together, told from a query's state.

Law: what is claimed is proved as where tables are read (`provenance.derivation`); where
whole functions are kept, a smallest set is told by the row's function. Each different row of a
table is told once, by the columns that the state has, which are all that the recursion reads.
Out of scope: the same from tables (`app.using.derived_row`).
"""

from __future__ import annotations

from functools import partial

from impctl.app.results.answer import rows_of
from impctl.app.results.why import WhyEntry
from impctl.app.using.derived_row import DerivedRow, the_row
from impctl.app.using.fresh_sketch import Fresh
from impctl.app.using.kept_functions.state import absorbed_rows, files_left_out
from impctl.app.using.row_given import RowGiven, condition_of_row
from impctl.app.workbench.memory_limit import MemoryLimit, held_to, memory_of
from impctl.app.workbench.recursion_limits import limits_of
from impctl.app.workbench.workbench import Workbench
from impctl.compile.flows import BlockedError
from impctl.engine.fixpoint.absorption import Ship
from impctl.plan.nodes import Select, attributes_of
from impctl.provenance.absorbed import KeptDerivations, derivations_of, smallest_by_functions
from impctl.provenance.derivation import Lineage, derivation_of
from impctl.provenance.program import made_rows


def row_from_state(desk: Workbench, result: Fresh, given: RowGiven) -> DerivedRow | None:
    """As `derived_row`; None where the state does not tell it."""
    root = result.prepared.planned.root
    absorbed = absorbed_rows(desk, result, root)
    told = None if absorbed is None else derivations_of(absorbed)
    if absorbed is None or told is None:
        return None
    kept, known = told
    asked = Select(root, condition_of_row(given, attributes_of(root)))
    limit = MemoryLimit(memory_of(desk.settings, desk.workload))
    try:
        with held_to(limit):
            made = made_rows(asked, {}, kept.first, limit.check, known, limits_of(desk))
    except BlockedError:
        # What stands above is not traced: the other way says so, by its place.
        return None
    number, row = the_row(result, desk.session_zone, asked, made)
    absorbs, smallest = absorbed.operator.absorbs, None
    if absorbs.ship is Ship.EAGER:
        smallest = partial(smallest_by_functions, first=kept.first, absorbs=absorbs)
    derivation = derivation_of(made.makings, number, kept.first, smallest=smallest)
    entries, copies = _entries(kept)
    lineage = sum(
        copies[leaf] for leaf in Lineage(made.makings, number, kept.first).leaves.tolist()
    )
    rows = tuple(entries[one] for one in derivation.rows)
    files = files_left_out(desk, result)
    return DerivedRow(row, derivation, rows, 0, files, lineage, from_state=True)


def _entries(kept: KeptDerivations) -> tuple[dict[int, WhyEntry], dict[int, int]]:
    """The rows of tables by their numbers, and how many copies there are."""
    entries, copies = dict[int, WhyEntry](), dict[int, int]()
    for table, held in kept.tables.items():
        copies.update(zip(held.numbers, held.copies, strict=True))
        for number, row in zip(held.numbers, rows_of(held.rows), strict=True):
            entries[number] = WhyEntry(table, dict(zip(held.columns, row, strict=True)))
    return entries, copies
