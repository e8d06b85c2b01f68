"""Names and Python expressions in the lines of push, pull, vars and diff."""

import pytest

from nbddp.notebook.magics.verbs import VERBS
from tests.support.command_lines import read, refusal


@pytest.mark.parametrize(
    ("line", "names", "ranks"),
    [
        ("push x y", ["x", "y"], None),
        ("push -r 0,1 x", ["x"], "0,1"),
        ("vars", [], None),
        ("vars a b -r 0  # why", ["a", "b"], "0"),
        ("vars d['a b']", ["d['a b']"], None),  # the ranks say that it is no name
    ],
)
def test_names(line: str, names: list[str], ranks: str | None):
    assert read(line) == {"names": names, "ranks": ranks}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("push", "%ddp push needs a name. Next: %ddp push NAME ... [-r RANKS]"),
        ("push -r 0", "%ddp push needs a name. Next: %ddp push NAME ... [-r RANKS]"),
        ("push x --rank 1", "%ddp push: unknown: --rank 1. Did you mean %ddp push x --ranks 1?"),
        ("push x --foo", "%ddp push: unknown: --foo; legal: NAME ..., -r RANKS. Next: %ddp help"),
        (
            "push x, 'y'",
            "%ddp push takes names without commas and quotes, and got \"x, 'y'\". "
            "Next: %ddp push x y",
        ),
        ("vars x -r", "%ddp vars: argument -r/--ranks: expected one argument; legal: -r RANKS. "),
        ("vars -r 0 x -r 1", "%ddp vars: -r is given twice; legal: -r RANKS. Next"),
        ("vars --foo", "%ddp vars: unknown: --foo; legal: NAME ..., -r RANKS. Next: %ddp help"),
    ],
)
def test_bad_names(line: str, said: str):
    assert refusal(line).startswith(said)


@pytest.mark.parametrize(
    ("line", "what", "ranks"),
    [
        ("x", "x", None),
        ("d['a  b'] + \"it's\" -r 0,1", "d['a  b'] + \"it's\"", "0,1"),
        ("--ranks=0 model.state_dict()", "model.state_dict()", "0"),
        ("x - r ", "x - r", None),
        ("d['x -r 0']", "d['x -r 0']", None),
        ("f(x -r, 'a # b')  # why", "f(x -r, 'a # b')", None),
        ("-1", "-1", None),
        ("-r 1 -x", "-x", "1"),
        ("x - -y", "x - -y", None),
        ("x - --y", "x - --y", None),
        ("f(x --y)", "f(x --y)", None),
        ("'x --y'", "'x --y'", None),
        ("x if y else --z", "x if y else --z", None),
        ("lambda: --y", "lambda: --y", None),
        ("x--y", "x--y", None),
        ("{'a': 1}['a']", "{'a': 1}['a']", None),
    ],
)
def test_an_expression_is_that_of_python(line: str, what: str, ranks: str | None):
    assert read(f"pull {line}") == {"expression": what, "ranks": ranks}
    assert read(f"diff {line}" if line[0] != "'" else "diff x") == {
        "expressions": [what if line[0] != "'" else "x"],
        "ranks": ranks,
    }


@pytest.mark.parametrize(
    ("line", "expressions"),
    [
        ("model optimizer", ["model", "optimizer"]),
        ("cfg['a b'] model # two", ["cfg['a b']", "model"]),
        ("a + b c.d", ["a + b", "c.d"]),
        ("a, b", ["a, b"]),
        ("[p.grad for p in ps] -r 0 rng", ["[p.grad for p in ps]", "rng"]),
    ],
)
def test_several_expressions(line: str, expressions: list[str]):
    assert read(f"diff {line}")["expressions"] == expressions


_NO_OPTION = "unknown: --{}; legal: EXPRESSION{}, -r RANKS. Next: %ddp help"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("diff y --rtol 1", "%ddp diff: " + _NO_OPTION.format("rtol", " ...")),
        ("diff a b --rtol=1", "%ddp diff: " + _NO_OPTION.format("rtol=1", " ...")),
        ("diff --rtol 1 y", "%ddp diff: " + _NO_OPTION.format("rtol", " ...")),
        ("pull --foo y", "%ddp pull: " + _NO_OPTION.format("foo", "")),
        ("pull --foo", "%ddp pull: " + _NO_OPTION.format("foo", "")),
        (
            "pull y --foo",
            "%ddp pull: unknown: --foo (for two minus signs write (y --foo)); legal: EXPRESSION, "
            "-r RANKS. Next: %ddp help",
        ),
        ("pull y --rank 0", "%ddp pull: unknown: --rank. Did you mean %ddp pull y --ranks 0?"),
        (
            "pull y d",
            "%ddp pull takes one expression, and got 2: y and d. Next: %ddp pull (y, d), or a line "
            "for each",
        ),
        ("pull", "%ddp pull needs an expression. Next: %ddp pull EXPRESSION [-r RANKS]"),
        ("pull -r 0", "%ddp pull needs an expression. Next: %ddp pull EXPRESSION [-r RANKS]"),
        ("pull x -r", "%ddp pull: argument -r/--ranks: expected one argument; legal: -r RANKS. "),
        ("pull -r 0 x --ranks=1", "%ddp pull: --ranks is given twice; legal: -r RANKS"),
        ("pull x = 3", "%ddp pull: 'x = 3' is not an expression (invalid syntax"),
        ("pull f(x", "%ddp pull: 'f(x' is not an expression ('(' was never closed). Next: %ddp "),
        ("diff", "%ddp diff needs an expression. Next: %ddp diff EXPRESSION ... [-r RANKS]"),
        ("diff -r 0", "%ddp diff needs an expression. Next: %ddp diff EXPRESSION ... [-r RANKS]"),
        ("diff x -r 0 -r 1", "%ddp diff: -r is given twice; legal: -r RANKS. Next"),
        ("diff -r", "%ddp diff: argument -r/--ranks: expected one argument; legal: -r RANKS. "),
        ("diff a b(", "%ddp diff: 'a b(' is not an expression ("),
        ("diff if x", "%ddp diff: 'if x' is not an expression (invalid syntax). Next: %ddp diff m"),
    ],
)
def test_bad_expressions(line: str, said: str):
    assert refusal(line).startswith(said)


@pytest.mark.parametrize(
    ("line", "expressions", "ranks"),
    [
        ("model", ["model"], None),
        ("cfg['a b'][0]  # why", ["cfg['a b'][0]"], None),
        (
            "[p.grad for p in model.parameters()] -r 0,2",
            ["[p.grad for p in model.parameters()]"],
            "0,2",
        ),
        ("-r 1-2 model", ["model"], "1-2"),
        ("--ranks=1-2 model", ["model"], "1-2"),
        ("model -r=0", ["model"], "0"),
    ],
)
def test_lines_of_diff(line: str, expressions: list[str], ranks: str | None):
    arguments = VERBS["diff"].parser.read(line)
    assert (arguments.expressions, arguments.ranks) == (expressions, ranks)
