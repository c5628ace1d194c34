"""Measure `peers`: what keeping a recursive query costs several peers, by scheme, simulated.

Options: `program` (reach, regions, paths) over the tables that the query reads, `schemes` (all of
`peers`), `peers` (12), `phase`: insert or delete, `shares` of the facts that have come (1)
or, after all of them came, have gone (0.2), one by one; `selections` of paths (multi), `window` of
eager schemes (16 messages), `seconds` (60) of processor time after which a run is given up, all
its steps together.
`dred_ratio` is how often as many messages DRed had at the same share, where it was measured before
(`schemes` are in an order); above 1 the scheme sends less.
Law: a run has an order of its own in which facts come, drawn by the seed; at every share the answer
is compared with one from the facts alone, outside what is timed. `cpu_ms` is processor time of one
process for all peers, and what a share's metrics have is counted from the beginning of the phase.
A run that is given up has no numbers from there on; the note tells it, and where it had none at
all no other order is tried.
Out of scope: what the engine of impctl does (`recursion_cost`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.figures import SuiteCase
from benchmarks.peers.answers import answer_of
from benchmarks.peers.network import CutOff, Limits
from benchmarks.peers.simulation import Scheme, Simulation, StepCost
from benchmarks.recursion.facts import MULTI, NONE, PATHS, REACH, REGIONS, SINGLE, Facts, facts_of
from impctl.bench.record import Cell, Label, Metric

INSERT, DELETE = "insert", "delete"


class _Options(Struct, frozen=True, kw_only=True):
    program: str
    schemes: tuple[str, ...]
    peers: tuple[int, ...]
    phase: str
    shares: tuple[float, ...]
    selections: tuple[str, ...]
    window: int
    seconds: float


class _Point(Struct, frozen=True):
    """Where a run stands at one share; `is_right` says that its answer is that of the facts."""

    numbers: dict[str, float]
    is_right: bool


class _Run(Struct, frozen=True):
    """Points that a run reached, and why it stopped."""

    points: tuple[_Point, ...]
    stopped: str = ""


def measure_peers(case: SuiteCase) -> Iterator[Cell]:
    """A cell per scheme, number of peers, selection and share."""
    case.only("program", "schemes", "peers", "phase", "shares", "selections", "window", "seconds")
    (program,) = case.choices("program", (REACH, REGIONS, PATHS), (REACH,))
    (phase,) = case.choices("phase", (INSERT, DELETE), (INSERT,))
    (seconds,) = case.numbers("seconds", (60.0,))
    schemes = tuple(map(str, Scheme))
    if program == PATHS:
        schemes = schemes[1:]  # rows alone do not tell the next best path
    options = _Options(
        program=program,
        schemes=case.choices("schemes", schemes, schemes),
        peers=case.whole_numbers("peers", (12,)),
        phase=phase,
        shares=case.numbers("shares", (1.0,) if phase == INSERT else (0.2,)),
        selections=case.choices("selections", (NONE, SINGLE, MULTI), (MULTI,)),
        window=case.whole_number("window", 16),
        seconds=seconds,
    )
    if not all(0 < share <= 1 for share in options.shares):
        raise case.refuse("shares", "above 0 and at most 1")
    if list(options.shares) != sorted(set(options.shares)):
        raise case.refuse("shares", "increasing shares")
    return _cells(case, options)


def _cells(case: SuiteCase, options: _Options) -> Iterator[Cell]:
    for selection in options.selections if options.program == PATHS else (MULTI,):
        facts = facts_of(case, options.program, selection)
        for peers in options.peers:
            dred: dict[float, Metric] = {}
            for scheme in map(Scheme, options.schemes):
                labels: dict[str, Label] = {"scheme": scheme.value.replace("_", " ")}
                labels |= {"peers": peers}
                if options.program == PATHS:
                    labels["selection"] = selection
                case.step(f"{peers} peers, {labels['scheme']}")
                runs = list(_runs(case, facts, scheme, peers, options))
                for share, cell in _told(case, options, labels, runs):
                    if scheme is Scheme.DRED and "messages_count" in cell.metrics:
                        dred[share] = cell.metrics["messages_count"]
                    yield _beside_dred(cell, dred.get(share))


def _runs(
    case: SuiteCase, facts: Facts, scheme: Scheme, peers: int, options: _Options
) -> Iterator[_Run]:
    """As many as requested, or one that reached no point."""
    for seed in range(case.seed, case.seed + case.repeat):
        run = _run(facts, scheme, peers, options, seed)
        yield run
        if not run.points:
            return


def _beside_dred(cell: Cell, dred: Metric | None) -> Cell:
    """The cell with its ratio, where both sent anything."""
    messages = cell.metrics.get("messages_count")
    if dred is None or messages is None or messages.low <= 0:
        return cell
    return replace(cell, metrics={**cell.metrics, "dred_ratio": Metric.quotient(dred, messages)})


def _told(
    case: SuiteCase, options: _Options, labels: dict[str, Label], runs: Sequence[_Run]
) -> Iterator[tuple[float, Cell]]:
    """The cells of all runs by share, up to the first one that none of them reached."""
    for index, share in enumerate(options.shares):
        reached = [run.points[index] for run in runs if index < len(run.points)]
        ended = [run for run in runs if index >= len(run.points)]
        note = f"{len(ended)} of {len(runs)} runs {ended[0].stopped}" if ended else ""
        metrics = {
            name: Metric.of([point.numbers[name] for point in reached])
            for name in (reached[0].numbers if reached else ())
        }
        is_right = all(point.is_right for point in reached) if reached else None
        yield share, case.cell(metrics, {**labels, "share": share}, equal=is_right, note=note)
        if not reached:
            return


def _run(facts: Facts, scheme: Scheme, peers: int, options: _Options, seed: int) -> _Run:
    limits = Limits(seconds=options.seconds)
    simulation = Simulation(facts.program, scheme, peers, window=options.window, limits=limits)
    others, points = facts.drawn(seed), list[_Point]()
    stops = [0, *(round(share * len(others)) for share in options.shares)]
    total = _Total(options.seconds)
    try:
        if options.phase == INSERT:
            come = [list(facts.first) + others[: stops[1]]]
            come += [others[since:until] for since, until in pairwise(stops[1:])]
            for part in come:
                total.add(simulation.step(part))
                points.append(_point(facts, simulation, total, peers, 0))
            return _Run(tuple(points))
        simulation.step([*facts.first, *others])
        for since, until in pairwise(stops):
            for fact in others[since:until]:
                total.add(simulation.step((), [fact]))
            points.append(_point(facts, simulation, total, peers, until))
    except CutOff as stopped:
        return _Run(tuple(points), str(stopped))
    return _Run(tuple(points))


def _point(
    facts: Facts, simulation: Simulation, total: _Total, peers: int, deletions: int
) -> _Point:
    numbers = {
        "messages_count": float(total.messages),
        "sent_bytes": total.bytes / peers,
        "provenance_bytes": simulation.provenance_bytes(),
        "state_bytes": simulation.state_bytes(),
        "cpu_ms": total.cpu_ms,
    }
    if deletions:
        numbers["each_count"] = total.messages / deletions
    is_right = simulation.answer() == answer_of(facts.program, simulation.facts)
    return _Point(numbers, is_right)


class _Total:
    """What all steps of a phase cost together, and the end of what they may."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.messages = 0
        self.bytes = 0
        self.cpu_ms = 0.0

    def add(self, cost: StepCost) -> None:
        """One more step; CutOff where that is too much."""
        self.messages += cost.messages
        self.bytes += cost.bytes
        self.cpu_ms += cost.cpu_ms
        if self.cpu_ms > self._seconds * 1000.0:
            raise CutOff(f"stopped after {self._seconds:g} s")
