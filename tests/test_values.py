"""Classes of values against those that `dataclasses` makes of the same text."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, field
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from impctl.values import dataclass as ours

T = TypeVar("T")
Decorator = Callable[..., Any]
theirs: Decorator = dataclasses.dataclass


def plain(decorator: Decorator, **parameters: bool) -> Any:
    @decorator(**parameters)
    class Value:
        """Has every kind of field."""

        kind: ClassVar[str] = "value"
        number: int
        text: str = "x"
        held: list[int] = field(default_factory=list)
        silent: int = field(default=3, repr=False)
        aside: int = field(default=4, compare=False)
        hidden: int = field(default=5, init=False)
        fresh: list[int] = field(default_factory=list, init=False)
        _: KW_ONLY
        named: int = 0
        asked: int

        def doubled(self) -> int:
            return self.number * 2

    return Value


def checked(decorator: Decorator, **parameters: bool) -> Any:
    @decorator(**parameters)
    class Value(Generic[T]):
        number: int

        def __post_init__(self) -> None:
            if self.number < 0:
                raise ValueError("below zero")

        def __repr__(self) -> str:
            return "mine"

    return Value


def own_equality(decorator: Decorator, **parameters: bool) -> Any:
    @decorator(**parameters)
    class Value:
        number: int

        def __eq__(self, other: object) -> bool:
            return True

    return Value


def own_hash(decorator: Decorator, **parameters: bool) -> Any:
    @decorator(**parameters)
    class Value:
        number: int

        def __hash__(self) -> int:
            return 17

    return Value


def empty(decorator: Decorator, **parameters: bool) -> Any:
    @decorator(**parameters)
    class Value:
        """Nothing to hold."""

    return Value


SHAPES = (plain, checked, own_equality, own_hash, empty)
ARGUMENTS: dict[Any, tuple[tuple[tuple[Any, ...], dict[str, Any]], ...]] = {
    plain: (
        ((1,), {"asked": 2}),
        ((1, "y", [1], 2, 3), {"asked": 2, "named": 9}),
        ((1,), {}),
        ((), {"asked": 1}),
        ((1, "y", [1], 2, 3, 4), {"asked": 2}),
        ((1,), {"asked": 2, "unknown": 1}),
        ((1,), {"asked": 2, "number": 1}),
        ((1,), {"asked": 2, "hidden": 1}),
    ),
    checked: (((1,), {}), ((-1,), {}), ((), {})),
    own_equality: (((1,), {}), ((2,), {})),
    own_hash: (((1,), {}), ((2,), {})),
    empty: (((), {}), ((1,), {})),
}
PARAMETERS = [
    {"frozen": frozen, "slots": slots, "eq": eq}
    for frozen in (True, False)
    for slots in (True, False)
    for eq in (True, False)
]


def outcome(action: Callable[[], Any]) -> Any:
    """What it gives, or how it fails."""
    try:
        return action()
    except Exception as error:  # noqa: BLE001  # whatever it is, the other one must do the same
        return type(error), str(error)


def held(value: Any) -> Any:
    if isinstance(value, tuple):
        return value
    return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}


def change(value: Any, name: str) -> Any:
    return outcome(lambda: setattr(value, name, 8)), outcome(lambda: getattr(value, name))


def drop(value: Any, name: str) -> Any:
    return outcome(lambda: delattr(value, name)), outcome(lambda: getattr(value, name))


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_value_is_made_refused_and_shown_as_by_dataclasses(
    shape: Decorator, parameters: dict[str, bool]
) -> None:
    for positional, named in ARGUMENTS[shape]:
        one, other = (shape(decorator, **parameters) for decorator in (ours, theirs))
        made, wanted = (_try(decorated, positional, named) for decorated in (one, other))
        assert held(made) == held(wanted)
        if isinstance(wanted, tuple):
            continue
        if type(wanted).__repr__ is not object.__repr__:
            assert repr(made) == repr(wanted)
        assert outcome(lambda made=made: hash(made) * 0) == outcome(
            lambda wanted=wanted: hash(wanted) * 0
        )
        for name in ("number", "text", "unknown"):
            for act in (change, drop):
                done, asked = (act(value, name) for value in (made, wanted))
                # With slots Python's own refuses unknown names by an accident of `super`.
                assert done == asked or asked[0][0] is TypeError, (name, act)


@pytest.mark.slow
@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_values_are_equal_and_hashed_as_by_dataclasses(
    shape: Decorator, parameters: dict[str, bool]
) -> None:
    def compared(decorator: Decorator) -> Any:
        made = shape(decorator, **parameters)
        another = shape(decorator, **parameters)
        good = [(p, n) for p, n in ARGUMENTS[shape] if not isinstance(_try(made, p, n), tuple)]
        values = [made(*p, **n) for p, n in good for _ in range(2)]
        values += [another(*p, **n) for p, n in good]
        equal = [[one == other for other in [*values, 1, None]] for one in values]
        hashes = [outcome(lambda value=value: hash(value)) for value in values]
        same = [[one == other for other in hashes] for one in hashes]
        failures = [entry for entry in hashes if isinstance(entry, tuple)]
        return equal, same, failures

    assert compared(ours) == compared(theirs)


def _try(made: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> Any:
    return outcome(lambda: made(*positional, **named))


@pytest.mark.parametrize("parameters", PARAMETERS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_class_is_described_as_by_dataclasses(
    shape: Decorator, parameters: dict[str, bool]
) -> None:
    one, other = (shape(decorator, **parameters) for decorator in (ours, theirs))
    _try(one, *ARGUMENTS[shape][0])  # whose signature is asked for after that
    assert str(inspect.signature(one)) == str(inspect.signature(other))
    assert one.__match_args__ == other.__match_args__
    assert getattr(one, "__slots__", None) == getattr(other, "__slots__", None)
    assert [(f.name, f.type, f.kw_only) for f in dataclasses.fields(one)] == [
        (f.name, f.type, f.kw_only) for f in dataclasses.fields(other)
    ]
    assert one.__init__.__qualname__ == other.__init__.__qualname__
    assert one.__init__.__module__ == __name__


@ours(frozen=True, slots=True)
class Kept:
    """At the top of a module, so that it can be pickled."""

    number: int
    inner: Kept | None = None


def test_values_are_copied_pickled_replaced_and_taken_apart() -> None:
    value = Kept(1, Kept(2))
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == value
    assert copy.deepcopy(value) == value
    assert copy.deepcopy(value).inner is not value.inner
    assert dataclasses.replace(value, number=5) == Kept(5, Kept(2))
    assert dataclasses.asdict(value) == {"number": 1, "inner": {"number": 2, "inner": None}}
    assert dataclasses.is_dataclass(value)
    assert repr(value) == "Kept(number=1, inner=Kept(number=2, inner=None))"
    match value:
        case Kept(1, Kept(number=number)):
            assert number == 2
        case _:
            pytest.fail("matches")


def test_a_value_can_be_unpickled_before_one_was_made() -> None:
    @ours(frozen=True, slots=True)
    class Fresh:
        number: int

    value = Fresh.__new__(Fresh)
    value.__setstate__([3])  # type: ignore[attr-defined]
    assert value == Fresh(3)
    with pytest.raises(FrozenInstanceError):
        value.number = 4  # type: ignore[misc]


def test_what_derives_from_a_value_is_left_to_dataclasses() -> None:
    for decorator in (theirs, ours):

        @decorator(frozen=True, slots=True)
        class Base:
            number: int

        @ours(frozen=True, slots=True)
        class Derived(Base):
            text: str = "x"

        assert Derived(1) == Derived(1, "x")
        assert Derived(1) != Derived(2)
        assert hash(Derived(1)) == hash(Derived(1, "x"))
        assert repr(Derived(1)).endswith("Derived(number=1, text='x')")
        assert [f.name for f in dataclasses.fields(Derived)] == ["number", "text"]
        for name in ("number", "text"):
            with pytest.raises(FrozenInstanceError):
                setattr(Derived(1), name, 2)
        with pytest.raises(TypeError, match="non-frozen"):
            ours(slots=True)(type("Changing", (Base,), {"__annotations__": {"more": "int"}}))

    @ours(frozen=True, order=True)
    class Ordered:
        number: int

    assert Ordered(1) < Ordered(2)


def test_a_plain_class_below_a_value_takes_its_init_and_attributes_of_its_own() -> None:
    @ours(frozen=True, slots=True)
    class Value:
        number: int

    class Below(Value):
        pass

    below = Below(3)
    assert below.number == 3
    assert Value(3).number == 3
    below.more = 1  # type: ignore[attr-defined]
    assert below.more == 1  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        below.number = 4  # type: ignore[misc]


@pytest.mark.slow
def test_every_value_of_the_package_is_as_dataclasses_would_make_it() -> None:
    """The signature of each class that maintaining loads, whether a value of it was made or not."""
    importlib.import_module("impctl.service.maintain")
    result = 0
    for module in [m for name, m in list(sys.modules.items()) if name.startswith("impctl.")]:
        for made in list(vars(module).values()):
            if not (isinstance(made, type) and made.__module__ == module.__name__):
                continue
            if "__dataclass_fields__" not in vars(made) or "__init__" not in vars(made):
                continue
            result += 1
            _assert_wanted(made)
    assert result > 200


def _assert_wanted(made: type) -> None:
    fields = dataclasses.fields(made)  # type: ignore[arg-type]
    body: dict[str, Any] = {"__annotations__": {f.name: f.type for f in fields}}
    for f in fields:
        body[f.name] = field(
            default=f.default, default_factory=f.default_factory, init=f.init, kw_only=f.kw_only
        )
    wanted = theirs(type(made.__name__, (), {**body, "__module__": made.__module__}))
    _try(made, (object(),) * 100, {})  # refused, and its `__init__` written
    assert str(inspect.signature(made)) == str(inspect.signature(wanted))


def test_no_file_of_the_package_takes_the_slow_decorator() -> None:
    package = Path(importlib.import_module("impctl").__file__ or "").parent
    slow = re.compile(r"^from dataclasses import .*\bdataclass\b|^import dataclasses", re.MULTILINE)
    result = [file for file in package.rglob("*.py") if slow.search(file.read_text("utf-8"))]
    assert result == [package / "values.py"]
