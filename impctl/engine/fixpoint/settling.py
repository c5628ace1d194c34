"""Which values keys have after a step, each settled about once: first what goes, then by value.

Law: a key has the least of what is derived for it, or none, and its `low` is what those of the
derivations of that value weigh that have a lower rank. First the keys go that nothing of lower rank
derives any more, and what stood on them; of each that went, the best of what else is derived is
looked for once. Then values spread along links, those that are least first, in rounds of a rank
each. A link adds nothing below zero, so that a value that is derived from a key which got better is
beaten by what is derived from it now. Everything is seen as if `links` were all there is, and what
changed in the base and by changed links is told beforehand (`Derivations`).
Cost: what went, came or changed, and the derivations of that.
Out of scope: keeping the outcome (`engine.fixpoint.valued_changes`).
"""

from __future__ import annotations

import numpy as np

from impctl.data.keys import distinct_values, starts_in
from impctl.data.vector import Bools, Ints
from impctl.engine.fixpoint.limits import Limits
from impctl.engine.fixpoint.valued_links import BODY, NET, OFFSET, Links
from impctl.engine.fixpoint.valued_rows import (
    BEST,
    COUNTED,
    KEY,
    MOST,
    NONE,
    RANKED,
    NotThisWayError,
    ValuedRows,
)
from impctl.values import dataclass

_AT_ONCE = 64
"""Keys that are followed whatever their values: a round takes longer than they do."""
_PART = 4
"""What part of the keys is followed at least; and those that lie no further from the least than a
link adds on average."""


@dataclass(frozen=True, slots=True)
class Derivations:
    """What is derived: the heads' slots, values, and weights; shapes (n,)."""

    heads: Ints
    values: Ints
    weights: Ints

    def keep(self, some: Bools | Ints) -> Derivations:
        """Those where it is set, or at these positions."""
        return Derivations(self.heads[some], self.values[some], self.weights[some])


class Admission:
    """The rank given last, how many keys have values, and the rounds of one step so far."""

    def __init__(self, stage: int, count: int, limits: Limits) -> None:
        self.stage, self.count, self._rounds = stage, count, 0
        self._limits = limits

    def admit(self, more: int) -> int:
        """Asked before so many keys more than before have values: their rank; not beyond limits."""
        self.stage, self.count, self._rounds = self.stage + 1, self.count + more, self._rounds + 1
        if self._rounds > self._limits.rounds or self.count > self._limits.rows:
            # The rounds of the operators tell, which may be fewer.
            raise NotThisWayError
        return self.stage


class Settling:
    """One step; `found` are changed derivations, `bodies` the ranks of the keys that they are from,
    -1 for those of the base."""

    def __init__(
        self, rows: ValuedRows, links: Links, derivations: Derivations, bodies: Ints
    ) -> None:
        self._rows, self._links = rows, links
        self._found, self._bodies = derivations, bodies
        self._lost: list[Derivations] = []
        self._counts: list[Ints] = []
        """The slots of rows whose low was counted in."""
        self._counted: Derivations | None = None

    def settle(self, admission: Admission) -> Ints:
        """Do so; the slots of keys whose value, rank or low may be another one."""
        out, result = self._send_out(), self._found
        values = self._rows.values
        if not len(out) and not (result.values < values[BEST, result.heads]).any():
            # As of most links that come or go: another way is better.
            return self._of_touched(out)
        heads = self._improve(out, admission)
        return self._count(out, heads)

    # What goes.

    def _send_out(self) -> Ints:
        """Take back what went; the slots of keys that have no ground, with what stood on them."""
        rows, links = self._rows, self._links
        front = self._take(self._found, self._bodies)
        gone = [front]
        while len(front):
            values = rows.values
            values[RANKED, front] = -values[RANKED, front]
            places = links.of(front)
            body, head, offset, net = links.held[BODY : NET + 1, places]
            values = rows.values
            self._lost.append(Derivations(head, values[BEST, body] + offset, -net))
            front = self._take(self._lost[-1], -values[RANKED, body])
            gone.append(front)
        return np.concatenate(gone)

    def _take(self, derivations: Derivations, bodies: Ints) -> Ints:
        """Count derivations into the lows of the rows that they derive; those groundless then."""
        rows = self._rows
        tight: Ints = (derivations.values == rows.values[BEST, derivations.heads]).nonzero()[0]
        if not len(tight):
            return tight
        heads: Ints = derivations.heads[tight]
        rows.know_ranks(heads)
        values = rows.values
        is_low = bodies[tight] < values[RANKED, heads]
        heads, weights = heads[is_low], derivations.weights[tight][is_low]
        if not len(heads):
            return heads
        self._counts.append(heads)
        np.add.at(values[COUNTED], heads, weights)
        low: Ints = values[COUNTED, heads]
        if low.min() < 0:
            raise NotThisWayError
        return distinct_values(heads[low == 0])

    # What comes.

    def _candidates(self, out: Ints) -> Derivations:
        """All that is derived for keys that went, but by such, and what came that is better."""
        rows, values = self._rows, self._rows.values
        derived = rows.held.derived
        is_out = np.zeros(rows.count, dtype=np.bool_)
        is_out[out] = True
        parts = []
        if len(out):
            keys = values[KEY, out]
            of_out = derived.find(keys, rows.key_columns(keys))
            if len(of_out.owners):
                result = rows.ordered(of_out.rows.columns[rows.step.value])
                parts.append(Derivations(out[of_out.owners], result, of_out.rows.weights))
        for part in (self._found, *self._lost):
            counts = is_out[part.heads] | (part.values < values[BEST, part.heads])
            parts.append(part.keep(counts))
        return _summed(parts)

    def _improve(self, out: Ints, admission: Admission) -> Ints:
        """Values spread; the slots of all keys that have another one, those that went aside."""
        rows = self._rows
        counted = self._counted = self._candidates(out)
        values = rows.values
        values[BEST, out] = NONE
        is_first = starts_in(counted.heads)
        first = is_first.nonzero()[0]
        pending = counted.heads[first]
        is_better = counted.values[first] < values[BEST, pending]
        pending = pending[is_better]
        values[BEST, pending] = counted.values[first][is_better]
        came = [pending]
        self._enter(pending, admission, -len(out))
        values[RANKED, out[values[BEST, out] == NONE]] = 0
        while len(pending):
            pending, heads = self._relaxed(pending)
            if len(heads):
                came.append(heads)
                self._enter(heads, admission, 0)
                pending = distinct_values(np.append(pending, heads)) if len(pending) else heads
        return np.concatenate(came)

    def _enter(self, slots: Ints, admission: Admission, more: int) -> None:
        """These keys have new values, and ranks."""
        rows = self._rows
        rows.know_ranks(slots)
        ranks = rows.values[RANKED]
        ranks[slots] = admission.admit(more + int((ranks[slots] <= 0).sum()))

    def _relaxed(self, pending: Ints) -> tuple[Ints, Ints]:
        """Follow the links of the least of these keys; the others, and the heads that got better,
        whose ranks are as they were."""
        rows, links = self._rows, self._links
        rest = pending[:0]
        if len(pending) > _AT_ONCE and links.count:
            values = rows.values[BEST, pending]
            width = int(links.held[OFFSET, : links.count].mean())
            some = np.partition(values, len(values) // _PART)[len(values) // _PART]
            is_near = values <= max(int(values.min()) + width, int(some))
            pending, rest = pending[is_near], pending[~is_near]
        places = links.of(pending)
        body, head, offset, net = links.held[BODY : NET + 1, places]
        best = rows.values[BEST]
        result = best[body] + offset
        if len(result) and result.max() >= MOST:
            raise NotThisWayError
        is_better = (result < best[head]) & (net > 0)
        head, result = head[is_better], result[is_better]
        np.minimum.at(best, head, result)
        return rest, distinct_values(head) if len(head) else head

    # What counts.

    def _count(self, out: Ints, heads: Ints) -> Ints:
        """The lows of keys with other values or ranks; the slots of all that was touched so."""
        rows, links, counted = self._rows, self._links, self._counted
        assert counted is not None
        changed = np.concatenate([out, heads])
        values = rows.values
        values[COUNTED, changed] = 0
        is_other = np.zeros(rows.count, dtype=np.bool_)
        is_other[changed] = True
        stays = counted.values == values[BEST, counted.heads]
        stays &= is_other[counted.heads]
        np.add.at(values[COUNTED], counted.heads[stays], counted.weights[stays])
        changed = is_other.nonzero()[0]
        inside = changed[values[BEST, changed] != NONE]
        places = links.of(inside)
        body, head, offset, net = links.held[BODY : NET + 1, places]
        is_low = is_other[head] & (values[BEST, body] + offset == values[BEST, head])
        is_low &= values[RANKED, body] < values[RANKED, head]
        np.add.at(values[COUNTED], head[is_low], net[is_low])
        if len(inside) and values[COUNTED, inside].min() <= 0:
            raise NotThisWayError
        return self._of_touched(changed)

    def _of_touched(self, changed: Ints) -> Ints:
        """Of these and all that were counted in those that are not as they were."""
        if not len(self._counts):
            return changed
        touched = distinct_values(np.concatenate([changed, *self._counts]))
        return self._rows.are_other(touched)


def _summed(parts: list[Derivations]) -> Derivations:
    """Derivations by head and value, ascending, each once with its sum; those of none left out."""
    heads = np.concatenate([part.heads for part in parts])
    values = np.concatenate([part.values for part in parts])
    weights = np.concatenate([part.weights for part in parts])
    if not len(heads):
        return Derivations(heads, values, weights)
    order = np.lexsort((values, heads))
    heads, values, weights = heads[order], values[order], weights[order]
    starts = starts_in(heads, values).nonzero()[0]
    sums = np.add.reduceat(weights, starts)
    if sums.min() < 0:
        raise NotThisWayError
    kept = starts[sums > 0]
    return Derivations(heads[kept], values[kept], sums[sums > 0])
