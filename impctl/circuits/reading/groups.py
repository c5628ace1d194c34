"""Groupings whose groups may be read instead of kept.

Law: the groups of a grouping can be left out where the rows below it can be read anew, and where
what it puts out is a function of these rows alone
(`Aggregate.is_told_by_rows`): what a change takes back then is what was put out before, whether it
came of groups that were kept or of rows that were read.
Of a circuit over one table partial aggregates go into kept groups alone, so that one whose groups
are read has no chain: it is stepped by rows.
Source: shared rule of state that is left out (docs/decisions/0101).
Out of scope: which are (`Chooser`), the operator (`engine.aggregate`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from impctl.circuits.flows import Flow
from impctl.circuits.reading.readable import DistantJoin, read_by_engine
from impctl.circuits.strategy import Chooser, SideChoice, SideFacts, Strategy, row_bytes
from impctl.engine.aggregate import Aggregate, GroupsRead
from impctl.plan.nodes import scans_of
from impctl.rules.joined_columns import is_narrowed
from impctl.values import dataclass


@dataclass(frozen=True, slots=True)
class Groups:
    """A grouping as chosen: its operator, and the rows that it reads, where it does."""

    choice: SideChoice
    operator: Aggregate | GroupsRead
    distant: DistantJoin | None = None


def chosen_groups(
    chooser: Chooser,
    flow: Flow,
    kept: Aggregate,
    made: Callable[[], Aggregate],
    *,
    is_passed: bool,
) -> Groups:
    """The grouping over this flow, kept or read.

    `made` gives it anew, with all values of its extremes; `is_passed` says that partial aggregates
    may fill the circuit.
    """
    pinned = _pinned(flow, kept)
    rows = flow.rows
    tables = () if rows is None else tuple(s.table for s in scans_of(rows))
    readers = () if pinned else (Strategy.FILES,)
    is_whole = rows is not None and not is_narrowed(rows, kept.group_keys)
    facts = SideFacts(
        kept.piece,
        tuple(dict.fromkeys(tables)),
        row_bytes(kept.keys, kept.accesses),
        readers,
        is_grouping=True,
        pinned=pinned,
        is_passed=is_passed,
        is_whole=is_whole,
    )
    choice = replace(chooser.choose(facts), readers=readers, is_whole=is_whole)
    if choice.strategy is not Strategy.FILES:
        return Groups(choice, kept)
    operator = GroupsRead(flow.columns, made)
    below = read_by_engine(flow, kept.piece, flow.columns, kept.group_keys)
    return Groups(choice, operator, DistantJoin(operator, None, (below,)))


def _pinned(flow: Flow, kept: Aggregate) -> str:
    """Why the groups must be kept; empty where they need not be."""
    if flow.rows is None:
        return "its rows are computed, so they cannot be read from tables"
    if not kept.group_keys:
        return "it has one group, which every change needs"
    if not kept.is_told_by_rows:
        return "sums of doubles and ties between them depend on earlier changes, not only on rows"
    return ""
