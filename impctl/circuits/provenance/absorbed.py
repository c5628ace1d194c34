"""Fixpoints kept by absorption: their ingredients, and what derives rows in their circuit.

Law: T, its changes and the sketch are those of a fixpoint by ranks (`circuits.recursion`). Above
the fixpoint's rows and those of ingredients their numbers go along as columns. Refused by its place
is what does not make each row of the fixpoint of rows that are there (an outer join of its rows, or
NOT IN, NOT EXISTS), and what counts derivations or keeps the best rows only.
Out of scope: what the operator does (`engine.fixpoint.absorption`), telling derivations
(`circuits.provenance.kept`).
"""

from __future__ import annotations

from impctl.circuits.flows import BlockedError, Flow, typed
from impctl.circuits.plumbing import Plumbing
from impctl.circuits.provenance.ingredients import Apart, OfTable, taken_apart
from impctl.circuits.provenance.numbering import Numbering, number_of
from impctl.circuits.recursion import Keyed, rows_of, untagged
from impctl.data.schema import LONG
from impctl.engine.circuit import Circuit
from impctl.engine.fixpoint.absorption import AbsorbedFixpoint, Absorbs, Ingredient
from impctl.expr.nodes import ColumnRef
from impctl.plan.nodes import Fixpoint, Plan, Scan
from impctl.types import FixpointId
from impctl.values import dataclass

_ABSORBED = "cannot be maintained with `provenance: absorption`"


@dataclass(frozen=True, slots=True)
class AbsorbedRows:
    """A fixpoint of a plan that is kept by absorption; `of` tells the tables of its ingredients."""

    fixpoint: FixpointId
    operator: AbsorbedFixpoint
    of: tuple[OfTable | None, ...]


def build_absorbed(
    builder: Plumbing, node: Fixpoint, inner: Plumbing, key: Keyed | None, absorbs: Absorbs
) -> tuple[Flow, AbsorbedRows]:
    """The operators of a fixpoint; `inner` builds those that derive its rows; KEYED where it has a
    `key`. BlockedError where it cannot be kept so."""
    _refuse(node)
    columns = typed(node.attributes, node.span)
    apart = taken_apart(node)
    numbered = Numbering(_refused).of(apart.plan)
    name = builder.name("fixpoint")
    inner.prefix = f"{name}."
    number = f"{name}/number"
    ingredients = _ingredients(builder, apart, key)
    given = {node.id: Flow(-1, (*columns, (number, LONG)), ())}
    for at, (ingredient, flow) in enumerate(zip(apart.ingredients, ingredients, strict=True)):
        own = (*typed(ingredient.leaf.attributes, node.span), (number_of(ingredient.leaf).id, LONG))
        given[ingredient.leaf.fixpoint] = Flow(-2 - at, own, flow.accesses)
    inner.given = given
    flow = inner.sure(inner.build(numbered.plan, must_be_sure=True))
    bodies = tuple(one.id for one in numbered.numbers)
    every = (*columns, *((one, LONG) for one in bodies))
    outputs = [(column, ColumnRef(column, kind)) for column, kind in every]
    flow = inner.project(flow, outputs, every, node)
    operator = AbsorbedFixpoint(
        name,
        columns,
        number,
        Circuit(inner.operators, inner.inputs),
        [
            Ingredient(typed(one.told_by, node.span), number_of(one.leaf).id, one.has_scans)
            for one in apart.ingredients
        ],
        bodies,
        len(flow.accesses),
        absorbs=absorbs,
    )
    rows = rows_of(builder, operator, ingredients, columns, flow.accesses, key)
    return rows, AbsorbedRows(node.id, operator, tuple(one.of for one in apart.ingredients))


def _ingredients(builder: Plumbing, apart: Apart, key: Keyed | None) -> list[Flow]:
    """The rows of all ingredients."""
    flows = []
    for ingredient in apart.ingredients:
        flow = builder.sure(builder.build(ingredient.plan, must_be_sure=True))
        own = typed(ingredient.leaf.attributes, ingredient.plan.span)
        if not {name for name, _ in own} <= flow.ids:
            what = "the engine does not support using a sum of doubles below WITH RECURSIVE"
            raise BlockedError(what, ingredient.plan.span)
        flows.append(untagged(builder, flow) if key is not None else flow)
    return flows


def _refuse(node: Fixpoint) -> None:
    """BlockedError for what is no set of all rows derived."""
    if not node.is_set:
        raise BlockedError(f"WITH RECURSIVE with UNION ALL {_ABSORBED}", node.span)
    if node.best is not None:
        what = "WITH RECURSIVE that keeps only the best rows"
        raise BlockedError(f"{what} {_ABSORBED}", node.span)
    if node.chooses:
        what = "WITH RECURSIVE whose sketch has only one derivation of each row"
        raise BlockedError(f"{what} {_ABSORBED}", node.span)


def _refused(node: Plan) -> Scan:
    what = f"{type(node).__name__} over rows of the self-referencing WITH entry"
    raise BlockedError(f"{what} {_ABSORBED}", node.span)
