"""The names that a cell binds, changes and reads."""

import ast

import pytest

from nbddp.controller.catch_up.cell_names import CellNames, cell_names


def names_of(code: str) -> CellNames:
    return cell_names(ast.parse(code).body)


BINDS = {
    "a = b = 1": "a b",
    "a, (b, *c) = d": "a b c",
    "a: int = 1": "a",
    "a += 1": "a",
    "import a.b, c as d": "a d",
    "from a import b, c as d": "b d",
    "def f(x):\n    y = 1": "f",
    "class C:\n    x = 1": "C",
    "for a in b:\n    c = 1": "a c",
    "with a as b:\n    pass": "b",
    "if (a := 1):\n    b = 1": "a b",
    "try:\n    a = 1\nexcept E as error:\n    pass\nelse:\n    b = 1": "a b",
    "match a:\n    case [b, *_]:\n        pass\n    case {'c': c} as d:\n        pass": "b c d",
    "def f():\n    global a\n    a = 1": "f a",
    "[x for x in y]": "",
    "[a := x for x in y]": "a",
    "lambda x: x": "",
    "a.b = 1; a[0] = 1": "",
    "async def f():\n    pass": "f",
}


@pytest.mark.parametrize("code", BINDS)
def test_names_that_are_bound(code: str):
    assert names_of(code).binds == set(BINDS[code].split())


READS = {
    "a = b + c.d": "b c",
    "a += 1": "a",
    "def f(x, y=a):\n    z = x + b\n    return z + y": "a b",
    "def f():\n    a = 1\n    def g():\n        return a + b\n    return g": "b",
    "class C(a):\n    x = b\n    def f(self):\n        return self.x + c": "a b c",
    "[x + a for x in b if x]": "a b",
    "lambda x, *y, z=a, **w: x + y + z + w + b": "a b",
    "@a\ndef f(x: b) -> c:\n    pass": "a b c",
    "{k: v for k, v in a}": "a",
    "a.b = c": "a c",
    "print(x)": "print x",
    "del a, b.c, d[e]": "a b d e",
    "from a import b\nc = b()\nd = c + e": "e",
    "a = a + 1\nb = a": "a",
    "a = 1\ndel a\nb = a": "a",
    "def f():\n    return f, a\nf()": "a",
    "if a:\n    b = 1\nc = b": "a b",
    "if a:\n    b = 1\nelse:\n    b = 2\nc = b": "a",
    "for a in b:\n    c = a\nd = a, c": "a b c",
    "while a:\n    b = 1\nelse:\n    c = 1\nd = b, c": "a b c",
    "with a as b:\n    c = b\nd = c": "a",
    "try:\n    a = 1\nexcept E as error:\n    b = error, a\nfinally:\n    c = 1\nd = a, c": "E a",
    "match a:\n    case [b, *_] if b > c:\n        d = b\ne = d": "a c d",
}


@pytest.mark.parametrize("code", READS)
def test_names_that_are_read(code: str):
    assert names_of(code).reads == set(READS[code].split())


def test_names_whose_values_are_changed_in_place():
    assert names_of("a.b.c = 1\nd[0] += 1\ndel e.f\ng = 1\nh().i = 1").changes == {"a", "d", "e"}
    assert names_of("def f(x):\n    x.y = 1\n    z.y = 1").changes == {"z"}


DELETES = {
    "a = b = 1\ndel a": "a",
    "del a, (b, c), d.e, f[0]": "a b c",
    "del a\na = 1": "",
    "del a\nimport a": "",
    "def f():\n    a = 1\n    del a\nf()": "",
}


@pytest.mark.parametrize("code", DELETES)
def test_names_that_are_deleted(code: str):
    assert names_of(code).deletes == set(DELETES[code].split())


@pytest.mark.parametrize(
    ("code", "seeds"),
    {
        "torch.manual_seed(rank)": True,
        "torch.cuda.manual_seed_all(1)": True,
        "import random; random.seed(0)": True,
        "if a:\n    np.random.seed(1)": True,
        "set_seed(3)": True,
        "transformers.set_seed(3)": True,
        "pl.seed_everything(3)": True,
        "g = torch.Generator().manual_seed(1)": False,
        "g.manual_seed(1)": False,
        "def f():\n    torch.manual_seed(1)": False,
        "table.seed(1)": False,
        "split(x, seed=1)": False,
    }.items(),
)
def test_cells_that_seed_random_numbers(code: str, *, seeds: bool):
    assert names_of(code).seeds is seeds


def test_a_star_import():
    assert names_of("from a import *").has_star
    assert not names_of("from a import b").has_star
