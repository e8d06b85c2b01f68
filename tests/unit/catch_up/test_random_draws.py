"""The names that hold numbers which cells drew without a seed."""

import random
import sys
import types

import numpy.random
import pytest

from nbddp.rank import random_draws


class Lazy:
    """An object whose class answers no question, as a proxy of something that is not there yet."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise RuntimeError("not there yet")


def drawn(*statements: str, **namespace: object) -> tuple[str, ...]:
    names = {"random": random, **namespace}
    draws = random_draws.Draws(names)
    for statement in statements:
        code = compile(statement, "cell", "exec")
        with draws.watching(code):
            exec(code, names)
    return draws.names()


def test_a_value_that_is_computed_from_itself_keeps_its_numbers():
    assert drawn("x = random.random()", "x = x * 2") == ("x",)
    assert drawn("x = random.random()", "x += 1") == ("x",)
    assert drawn("x = random.random()", "x = 1") == ()


def test_a_generator_of_numpy_that_is_new_has_drawn_nothing(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("numpy.random")
    made = numpy.random.RandomState()
    kind = numpy.random.RandomState
    module.__dict__.update(get_state=made.get_state, set_state=made.set_state, RandomState=kind)

    def load() -> int:
        monkeypatch.setitem(sys.modules, "numpy.random", module)
        return 1

    def lacking() -> None:
        monkeypatch.delitem(sys.modules, "numpy.random")

    lacking()
    assert drawn("x = load()", "y = made.rand()", load=load, made=made) == ("y",)
    lacking()
    assert drawn("x = load() + made.rand()", load=load, made=made) == ("x",)


def test_an_object_that_does_not_tell_its_class_is_no_generator():
    assert drawn("lazy; x = random.random()", lazy=Lazy()) == ("x",)
    assert list(random_draws.of_user({"lazy": Lazy(), "dice": random.Random(1)})) == ["dice"]
