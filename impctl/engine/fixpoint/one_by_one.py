"""Which values keys have after a step that concerns few of them, one key after the other.

Law: values, and what they count, are as `settling` has them; ranks are given key by key, in the
order in which these are settled, that of their values. Where it comes to more than `few` keys all
is as before, and nothing is found. Cost: microseconds a key and link, where rounds of NumPy take a
tenth of a millisecond each, however few.
Out of scope: more keys (`engine.fixpoint.settling`), what is kept (`valued_changes`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

import numpy as np

from impctl.data.vector import Ints
from impctl.engine.fixpoint.settling import Admission, Derivations
from impctl.engine.fixpoint.valued_links import Links
from impctl.engine.fixpoint.valued_rows import (
    BEST,
    COUNTED,
    KEY,
    KNOWN,
    MOST,
    NONE,
    RANKED,
    WAS,
    NotThisWayError,
    ValuedRows,
)
from impctl.engine.fixpoint.views import IndexView, view_of

FEW = 48
"""Keys that go or get another value in a step, up to which they are followed one by one."""
_Link = tuple[int, int, int]
"""The head's slot, what is added, and the weight."""


class _LeftError(Exception):
    """Left to others: there are too many keys, or derivations went that were never there."""


class OneByOne:
    """One step over `rows`, at most `few` of which go or get another value."""

    def __init__(self, rows: ValuedRows, links: Links, few: int) -> None:
        self._rows, self._links, self._few = rows, links, few
        self._pool: dict[int, dict[int, int]] = {}
        """By slot: what its derivations weigh, by value, as far as they matter."""
        self._touched: set[int] = set()
        self._out: list[int] = []

    def settle(self, derivations: Derivations, bodies: Ints, admission: Admission) -> Ints | None:
        """The slots of keys whose value, rank or low is another one; None where it is left."""
        table, derived = self._links.views(), self._rows.views()
        if table is None or derived is None:
            return None
        self._table, self._derived = table, derived
        try:
            self._view()
            self._send_out(derivations, bodies)
            self._improve(admission)
        except _LeftError:
            self._undo()
            return None
        return self._rows.are_other(np.array(sorted(self._touched), dtype=np.int64))

    def _undo(self) -> None:
        values, touched = self._rows.values, list(self._touched)
        values[:WAS, touched] = values[WAS : 2 * WAS, touched]

    def _view(self) -> None:
        values = self._rows.values
        self._best, self._rank, self._low = map(
            view_of, (values[BEST], values[RANKED], values[COUNTED])
        )
        self._key, self._known = view_of(values[KEY]), view_of(values[KNOWN])

    def _send_out(self, derivations: Derivations, bodies: Ints) -> None:
        """What went is taken back, with what stood on it."""
        every = (derivations.heads, derivations.values, derivations.weights, bodies)
        for head, value, weight, body in zip(*(part.tolist() for part in every), strict=True):
            self._derive(head, value, weight)
            if value == self._best[head]:
                self._count(head, weight, body)
        rank, low = self._rank, self._low
        front = [slot for slot in self._touched if rank[slot] > 0 and low[slot] <= 0]
        while front:
            slot = front.pop()
            if self._low[slot] < 0:
                raise _LeftError
            self._out.append(slot)
            self._spend()
            body, value = self._rank[slot], self._best[slot]
            self._rank[slot] = -body
            for head, offset, weight in self._linked(slot):
                made = value + offset
                self._derive(head, made, -weight)
                if made == self._best[head] and self._count(head, -weight, body):
                    front.append(head)

    def _count(self, head: int, weight: int, body: int) -> bool:
        """Count a derivation of a key's value; whether it has lost its ground."""
        self._know(head)
        if body >= self._rank[head]:
            return False
        self._touched.add(head)
        self._low[head] += weight
        return bool(self._low[head] <= 0)

    def _derive(self, head: int, value: int, weight: int) -> None:
        pool = self._pool.get(head)
        if pool is None:
            self._pool[head] = {value: weight}
        else:
            pool[value] = pool.get(value, 0) + weight

    def _spend(self) -> None:
        self._few -= 1
        if self._few < 0:
            raise _LeftError

    def _know(self, slot: int) -> None:
        if not self._known[slot]:
            self._rows.know_ranks(np.array([slot], dtype=np.int64))

    # What comes.

    def _improve(self, admission: Admission) -> None:
        """Keys that went, or are derived with a better value, are settled by value."""
        best, rank, low = self._best, self._rank, self._low
        for slot in self._out:
            for value, weight in self._held(slot):
                self._derive(slot, value, weight)
        heap: list[tuple[int, int]] = []
        hoped: dict[int, int] = {}
        is_out = set(self._out)
        for slot, pool in self._pool.items():
            limit = NONE if slot in is_out else best[slot]
            if min(pool.values()) < 0 and any(
                weight < 0 for value, weight in pool.items() if value < limit
            ):
                raise _LeftError
            least = min((value for value, weight in pool.items() if weight > 0), default=NONE)
            if least < limit:
                hoped[slot] = least
                heappush(heap, (least, slot))
        if not heap and not self._out:
            return
        admission.admit(-len(self._out))
        for slot in self._out:
            best[slot], rank[slot], low[slot] = NONE, 0, 0
        while heap:
            value, slot = heappop(heap)
            if hoped[slot] != value or value == self._best[slot]:
                continue
            self._spend()
            self._know(slot)
            self._touched.add(slot)
            stage = admission.admit(int(self._rank[slot] == 0))
            self._best[slot], self._rank[slot] = value, stage
            self._low[slot] = self._pool[slot][value]
            for head, offset, weight in self._linked(slot):
                made = value + offset
                if made >= self._best[head]:
                    continue
                self._derive(head, made, weight)
                if made < hoped.get(head, NONE):
                    hoped[head] = made
                    heappush(heap, (made, head))

    def _held(self, slot: int) -> Iterator[tuple[int, int]]:
        """Values and weights of all that was derived of a key."""
        key, is_greatest = self._key[slot], self._rows.step.is_greatest
        for view in self._derived:
            first, last = _span(view, key)
            for place in range(first, last):
                value = view.columns[0][place]
                yield ~value if is_greatest else value, view.weights[place]

    def _linked(self, slot: int) -> Sequence[_Link]:
        """What leads on from a key."""
        key, offset = self._key[slot], self._rows.step.offset
        links: list[_Link] = []
        has_gone = False
        for view in self._table:
            first, last = _span(view, key)
            for place in range(first, last):
                head = self._rows.slot_of(view.columns[0][place])
                more = offset.constant
                if offset.column is not None:
                    more += offset.sign * view.columns[1][place]
                if not 0 <= more < MOST:
                    raise NotThisWayError
                weight = view.weights[place]
                has_gone = has_gone or weight < 0
                links.append((head, more, weight))
        if self._rows.values.shape[1] != len(self._best):
            self._view()
        return _summed(links) if has_gone else links


def _span(view: IndexView, key: int) -> tuple[int, int]:
    """Where the rows of a key lie."""
    codes = view.codes
    first = bisect_left(codes, key)
    if first == len(codes) or codes[first] != key:
        return first, first
    return first, bisect_right(codes, key, first)


def _summed(links: Sequence[_Link]) -> Sequence[_Link]:
    """Those that are left where some go."""
    sums: dict[tuple[int, int], int] = {}
    for head, more, weight in links:
        sums[head, more] = sums.get((head, more), 0) + weight
    if min(sums.values()) < 0:
        raise NotThisWayError
    return [(*link, weight) for link, weight in sums.items() if weight]
