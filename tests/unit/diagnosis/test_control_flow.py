"""The statements that decide whether a line runs."""

import textwrap

import pytest

from nbddp.controller.catch_up.cell_names import cell_names
from nbddp.controller.diagnosis.control_flow import Code

#: A cell, the line in question, the lines of the branches around it, and those of the exits.
_CASES = {
    "plain": ("a()\nb()", 2, [], []),
    "if": ("if rank == 0:\n    a()\n    b()", 3, ["if rank == 0:"], []),
    "else": ("if rank == 0:\n    a()\nelse:\n    b()", 4, ["else: of if rank == 0:"], []),
    "else, far": (
        "if rank == 0:\n    a()\n\nelse :  # others\n\n    # why\n    b()",
        7,
        ["else : of if rank == 0:"],
        [],
    ),
    "elif": ("if x:\n    a()\nelif rank:\n    b()", 4, ["elif rank:"], []),
    "else of elif": (
        "if x:\n    a()\nelif rank:\n    b()\nelse:\n    c()",
        6,
        ["else: of elif rank:"],
        [],
    ),
    "if in else": (
        "if x:\n    a()\nelse:\n    if y:\n        b()",
        5,
        ["if y:", "else: of if x:"],
        [],
    ),
    "one line": ("if rank == 0: a()", 1, ["if rank == 0:"], []),
    "several on a line": ("für = 1\nif rank: ä(); b()", 2, ["if rank:"], []),
    "head": ("if a():\n    b()", 1, [], []),
    "condition of a line": ("if a(): x = 1", 1, [], []),
    "condition with a break": (
        "for k in y:\n    if a():\n        break",
        2,
        ["for k in y:"],
        ["break (if a():)"],
    ),
    "condition with a break on its line": (
        "for k in y:\n    if a(): break",
        2,
        ["for k in y:"],
        ["if a(): break (if a():)"],
    ),
    "behind an and": ("if rank == 0 and a():\n    b()", 1, ["if rank == 0 and a():"], []),
    "before an and": ("if a() and rank == 0:\n    b()", 1, [], []),
    "loops": (
        "for step in range(3):\n    while True:\n        a()",
        3,
        ["while True:", "for step in range(3):"],
        [],
    ),
    "else of a loop": ("for x in y:\n    a()\nelse:\n    b()", 4, [], []),
    "except": ("try:\n    a()\nexcept ValueError:\n    b()", 4, ["except ValueError:"], []),
    "try": ("try:\n    a()\nexcept ValueError:\n    b()", 2, ["try:"], []),
    "exit": (
        "if rank == 1:\n    sys.exit(0)\nif x: exit()\na()",
        4,
        [],
        ["sys.exit(0) (if rank == 1:)", "if x: exit() (if x:)"],
    ),
    "call": ("if rank == 1:\n    exits()\na()", 3, [], []),
    "finally": ("try:\n    a()\nfinally:\n    b()", 4, [], []),
    "with": ("with a:\n    b()", 2, [], []),
    "match": (
        "match rank:\n    case 0:\n        a()\n    case _:\n        b()",
        3,
        ["case 0:"],
        [],
    ),
    "function": ("if x:\n    def f():\n        if y:\n            a()", 4, ["if y:"], []),
    "method": (
        "class A:\n    def f(self):\n        for x in y:\n            a()",
        4,
        ["for x in y:"],
        [],
    ),
    "several lines": (
        "if (\n    rank\n    == 0\n):\n    a(\n        1,\n    )",
        6,
        ["if ( rank == 0 ):"],
        [],
    ),
    "continue": (
        "for step in range(3):\n    if rank == 2:\n        continue\n    a()",
        4,
        ["for step in range(3):"],
        ["continue (if rank == 2:)"],
    ),
    "continue of another loop": (
        "for step in range(3):\n    for x in y:\n        if rank: continue\n    a()",
        4,
        ["for step in range(3):"],
        [],
    ),
    "continue behind": (
        "for step in range(3):\n    a()\n    if rank:\n        continue",
        2,
        ["for step in range(3):"],
        [],
    ),
    "break behind": (
        "while True:\n    a()\n    if rank:\n        break",
        2,
        ["while True:"],
        ["break (if rank:)"],
    ),
    "break of another loop": ("while x:\n    if rank:\n        break\na()", 4, [], []),
    "break always": ("while True:\n    a()\n    break", 2, ["while True:"], []),
    "return": (
        "def f():\n    if rank: return\n    a()",
        3,
        [],
        ["if rank: return (if rank:)"],
    ),
    "return in a loop": (
        "def f():\n    for x in y:\n        a()\n        if x:\n            return 3",
        3,
        ["for x in y:"],
        ["return 3 (if x:)"],
    ),
    "return of another function": ("def f():\n    if x:\n        return\na()", 4, [], []),
    "return behind": ("def f():\n    a()\n    if x:\n        return", 2, [], []),
    "return in the other branch": (
        "def f():\n    if x:\n        return 1\n    else:\n        a()",
        5,
        ["else: of if x:"],
        ["return 1 (if x:)"],
    ),
    "magics": (
        "%%time\n!ls\nfiles = !ls\nfiles?\nif x:\n    %matplotlib inline\n    a()",
        7,
        ["if x:"],
        [],
    ),
    "escapes": (
        "if re.match('\\d\\'', r'\\''):\n    x = 'a\\\\' + \\\n        b()",
        3,
        ["if re.match('\\d\\'', r'\\''):"],
        [],
    ),
    "no Python": ("if x\n    a()", 2, [], []),
    "beyond": ("a()", 7, [], []),
    "nothing": ("", 1, [], []),
}


@pytest.mark.parametrize(("text", "line", "branches", "exits"), _CASES.values(), ids=_CASES)
def test_statements_around_a_line(text: str, line: int, branches: list[str], exits: list[str]):
    for first_line in (1, 5):
        code = Code(text, first_line)
        moved = line + first_line - 1
        around = code.branches(moved)
        assert [
            each.source + (f" of {each.other.source}" if each.other else "") for each in around
        ] == branches
        assert [f"{each.source} ({each.condition.source})" for each in code.exits(moved)] == exits
        assert all(code.source(each.line) for each in around)


def test_the_text_of_a_line():
    code = Code(textwrap.indent("a()\nb()  ", "    "), first_line=3)
    assert [code.source(line) for line in range(7)] == ["", "", "", "    a()", "    b()", "", ""]


@pytest.mark.parametrize("terms", [300, 900, 5000])
def test_a_statement_that_is_nested_too_deeply_is_left_out(terms: int):
    deep = "x = " + " + ".join(["rank"] * terms)
    statements = Code(f"y = 1\n{deep}").statements
    assert [each.lineno for each in statements] in ([1], [])  # Python refuses 5,000 terms itself
    assert cell_names(statements).binds == frozenset("y" * len(statements))
    assert len(Code(f"y = {deep[4:600]}").statements) == 1
