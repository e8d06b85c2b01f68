"""Changes of the user's code after which a deadlock is gone."""

import ast
import textwrap

import pytest

from nbddp.controller.diagnosis import ChangedLine, Code
from nbddp.controller.diagnosis.message_swaps import in_two_orders, swapped, wait_later
from nbddp.controller.diagnosis.suggested_change import moved_out
from nbddp.notebook.render import code_excerpt
from tests.support.changes import apply_change
from tests.support.looks import CELL, Ranks, only

_MARKS = {"same": " ", "removed": "-", "added": "+"}


def shown(lines: tuple[ChangedLine, ...]) -> list[str]:
    return [f"{_MARKS[line.change]}{line.source}" for line in lines]


def lines_of(text: str) -> list[str]:
    return textwrap.dedent(text).strip("\n").splitlines()


MOVED = {
    "alone": (
        """
        x = 1
        if rank == 0:
            # all of them
            dist.all_reduce(x)
        y = 2
        """,
        4,
        """
        -if rank == 0:
        -    # all of them
        -    dist.all_reduce(x)
        +# all of them
        +dist.all_reduce(x)
        """,
    ),
    "a comment before others": (
        """
        if rank == 0:
            y = 1
            # of all

            # in place
            dist.all_reduce(x)  # the sum
        """,
        6,
        """
         if rank == 0:
             y = 1
        -    # of all
        -
        -    # in place
        -    dist.all_reduce(x)  # the sum
        +# of all
        +
        +# in place
        +dist.all_reduce(x)  # the sum
        """,
    ),
    "the first of two": (
        """
        if rank == 0:
            dist.all_reduce(x)
            # and the count
            dist.all_reduce(count)
            print(x / count, round(x.item()))
        """,
        2,
        """
        +dist.all_reduce(x)
        +# and the count
        +dist.all_reduce(count)
         if rank == 0:
        -    dist.all_reduce(x)
        -    # and the count
        -    dist.all_reduce(count)
             print(x / count, round(x.item()))
        """,
    ),
    "the second of two, as a rank that broadcasts goes on alone": (
        """
        if rank == 0:
            dist.broadcast(x, 0)
            dist.barrier()
        """,
        3,
        """
        -if rank == 0:
        -    dist.broadcast(x, 0)
        -    dist.barrier()
        +dist.broadcast(x, 0)
        +dist.barrier()
        """,
    ),
    "last of several": (
        """
        if rank == 0:
            print(1)
            print(2)
            print(3)
            dist.barrier()
        """,
        5,
        """
         if rank == 0:
             ...
             print(3)
        -    dist.barrier()
        +dist.barrier()
        """,
    ),
    "first of several": (
        """
        for step in steps:
            if rank == 0:
                dist.all_reduce(x, op=dist.ReduceOp.SUM,
                                group=None)
                print(x)
        """,
        4,
        """
        +    dist.all_reduce(x, op=dist.ReduceOp.SUM,
        +                    group=None)
             if rank == 0:
        -        dist.all_reduce(x, op=dist.ReduceOp.SUM,
        -                        group=None)
                 print(x)
        """,
    ),
    "else": (
        """
        if rank == 0:
            y = 1
        else:
            dist.broadcast(x, 0)
        """,
        4,
        """
         if rank == 0:
             y = 1
        -else:
        -    dist.broadcast(x, 0)
        +dist.broadcast(x, 0)
        """,
    ),
    "in a function": (
        """
        def step(model):
            if dist.get_rank() == 0:
                loss = model(1)
                handle = dist.barrier()
        """,
        4,
        """
             if dist.get_rank() == 0:
                 loss = model(1)
        -        handle = dist.barrier()
        +    handle = dist.barrier()
        """,
    ),
}


@pytest.mark.parametrize("name", MOVED)
def test_a_call_moves_out_of_its_if(name: str):
    source, line, change = MOVED[name]
    code = Code("\n".join(lines_of(source)))
    assert shown(moved_out(code, line)) == lines_of(change)


NOT_MOVED = {
    "needs a name of the if": ("if rank == 0:\n    x = load()\n    dist.broadcast(x, 0)", 3),
    "needs an import of the if": ("if rank == 0:\n    import a.b\n    a.f(dist.barrier())", 3),
    "in one line": ("if rank == 0: dist.barrier()", 1),
    "two in one line": ("if rank == 0:\n    print(1); dist.barrier()", 2),
    "an if without statements": ("if rank == 0:\n    dist.barrier()\nelse:\n    print(1)", 2),
    "elif": ("if rank == 0:\n    print(1)\nelif rank == 1:\n    dist.barrier()", 4),
    "inside a loop in the if": ("if rank == 0:\n    for x in y:\n        dist.barrier()", 3),
    "tabs": ("if rank == 0:\n\tdist.barrier()", 2),
    "no statement": ("if rank == 0:\n    dist.barrier()", 9),
    "no syntax": ("if rank == 0\n    dist.barrier()", 2),
    "lines before and after it": (
        "if rank == 0:\n    x.mul_(2)\n    dist.barrier()\n    print()",
        3,
    ),
    "a line behind it may need it": ("if rank == 0:\n    dist.all_reduce(x)\n    x /= 2", 2),
    "asynchronous": ("if rank == 0:\n    h = dist.all_reduce(x, async_op=True)", 2),
    "a part of the condition stays": ("if rank == 0 and step:\n    dist.barrier()", 2),
    "two, and others in the else": (
        "if rank == 0:\n    dist.barrier()\n    dist.barrier()\nelse:\n    dist.barrier()",
        3,
    ),
    "two that are no neighbours": (
        "if rank == 0:\n    dist.broadcast(x, 0)\n    y = 1\n    dist.barrier()",
        4,
    ),
    "a line that prints may call another one": (
        "if rank == 0:\n    dist.barrier()\n    print(total(x))",
        2,
    ),
    "a text of several lines": (
        'if rank == 0:\n    dist.broadcast_object_list(["""a\n    b"""])',
        2,
    ),
    "returned": ("def f():\n    if rank == 0:\n        return dist.barrier()", 3),
}


@pytest.mark.parametrize("name", NOT_MOVED)
def test_a_call_that_cannot_be_moved(name: str):
    source, line = NOT_MOVED[name]
    assert moved_out(Code(source), line) == ()


@pytest.mark.parametrize("name", MOVED)
def test_the_changed_code_is_legal(name: str):
    source, line, _ = MOVED[name]
    text = "\n".join(lines_of(source))
    code = apply_change(text, moved_out(Code(text), line))
    assert len(list(ast.walk(ast.parse(code)))) > 3


def test_two_calls_in_two_orders():
    source = "for step in steps:\n    dist.recv(t, src=left)\n    dist.send(s, dst=right)\n    x"
    code = Code(source)
    assert shown(in_two_orders(code, 2, "rank % 2 == 0")) == [
        "-    dist.recv(t, src=left)",
        "-    dist.send(s, dst=right)",
        "+    if rank % 2 == 0:",
        "+        dist.send(s, dst=right)",
        "+        dist.recv(t, src=left)",
        "+    else:",
        "+        dist.recv(t, src=left)",
        "+        dist.send(s, dst=right)",
    ]


def test_a_message_is_copied_before_its_buffer_receives_another_one():
    code = Code("dist.send(x, right)\ny = torch.empty(4)\ndist.recv(x, left)")
    assert shown(in_two_orders(code, 1, "rank % 2 == 0"))[3:] == [
        "+y = torch.empty(4)",
        "+sent = x.clone()",
        "+if rank % 2 == 0:",
        "+    dist.recv(x, left)",
        "+    dist.send(sent, right)",
        "+else:",
        "+    dist.send(sent, right)",
        "+    dist.recv(x, left)",
    ]


def test_a_comment_stays_with_its_call():
    code = Code("# first\ndist.recv(t, 1)\n\n# then\ndist.send(s, 1)  # to 1")
    assert shown(in_two_orders(code, 2, "rank"))[4:] == [
        "+if rank:",
        "+    # then",
        "+    dist.send(s, 1)  # to 1",
        "+    dist.recv(t, 1)",
        "+else:",
        "+    dist.recv(t, 1)",
        "+    # then",
        "+    dist.send(s, 1)  # to 1",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "dist.recv(t)",
        "dist.recv(t)\nprint(t)",
        "dist.recv(t)\nx = 1\ndist.send(t)",
        "dist.recv(t)\ns = 2 * t\ndist.send(s)",
        "dist.send(t)\nt = torch.empty(4)\ndist.recv(t)",
        "dist.send(t)\ns = load()\ndist.recv(s)",
        "dist.send(t[0])\ndist.recv(t)",
        "dist.recv(t)\ndist.recv(t)",
        "dist.recv(t, 0)\ndist.send(t, 1)",
        "dist.recv(t); dist.send(t)",
    ],
)
def test_calls_that_are_no_neighbours(source: str):
    assert in_two_orders(Code(source), 1, "rank == 0") == ()


@pytest.mark.parametrize(
    "source",
    [
        "src = dist.recv(t, src=left)\ndist.send(s, dst=right)",
        "dist.recv(tensor=t, src=left)\ndist.send(tensor=s, dst=right)",
        "dist.recv_object_list(t, left)\ndist.send_object_list([1], right)",
        "dist.irecv(t, left).wait()\ndist.isend(s, right).wait()",
    ],
)
def test_other_spellings_of_two_calls(source: str):
    first, second = source.splitlines()
    assert shown(in_two_orders(Code(source), 1, "rank == 0"))[3:5] == [
        f"+    {second}",
        f"+    {first}",
    ]


def test_a_print_stays_behind_its_call():
    source = "dist.recv(t, left)\nprint(t)\ndist.send(s, right)"
    assert shown(in_two_orders(Code(source), 1, "rank == 0"))[4:7] == [
        "+    dist.send(s, right)",
        "+    dist.recv(t, left)",
        "+    print(t)",
    ]
    assert in_two_orders(Code("dist.send(s, 1)\nprint(t)\ndist.recv(t, 1)"), 1, "rank == 0") == ()


def test_helpers_that_send_and_receive_once():
    helpers = (
        "def get(n):\n    dist.recv(t, n)\n    return t\ndef put(s, n):\n    dist.send(s, n)\n"
    )
    code = Code(f"{helpers}y = get(rank - 1)\nput(x, rank + 1)")
    assert shown(in_two_orders(code, 6, "rank == 0"))[3:5] == [
        "+    put(x, rank + 1)",
        "+    y = get(rank - 1)",
    ]
    assert in_two_orders(Code(f"{helpers}y = get(1)\nput(y, 1)"), 6, "rank == 0") == ()


def test_the_calls_of_one_branch_are_swapped():
    source = "if rank == 0:\n    dist.recv(y, 1)\n    dist.send(x, 1)\nelse:\n    dist.recv(y, 0)"
    assert shown(swapped(Code(source), 2)) == [
        " if rank == 0:",
        "+    dist.send(x, 1)",
        "     dist.recv(y, 1)",
        "-    dist.send(x, 1)",
    ]
    assert apply_change(source, swapped(Code(source), 2)).splitlines()[1:3] == [
        "    dist.send(x, 1)",
        "    dist.recv(y, 1)",
    ]
    assert swapped(Code("dist.recv(x, 1)\ndist.send(x, 1)"), 1) == ()


def test_a_wait_moves_behind_the_other_message():
    source = "req = dist.irecv(y, 1)\nreq.wait()\ndist.send(x, 1)"
    assert shown(wait_later(Code(source), 1)) == [
        " req = dist.irecv(y, 1)",
        "-req.wait()",
        " dist.send(x, 1)",
        "+req.wait()",
    ]
    assert wait_later(Code("req = dist.irecv(x, 1)\nreq.wait()\ndist.send(x, 1)"), 1) == ()
    assert wait_later(Code("req = dist.irecv(x, 1)\nother.wait()\ndist.send(y, 1)"), 1) == ()


# --- as findings have it -------------------------------------------------------------------------


def circle(size: int) -> list[str]:
    """The change where each rank of a ring receives first."""
    pool = Ranks(size)
    pool.code[CELL] = (
        "dist.recv(t, src=(rank - 1) % world_size)\ndist.send(s, (rank + 1) % world_size)"
    )
    for rank in range(size):
        pool[rank].blocked("recv", peer=(rank - 1) % size, line=1)
    finding = only(pool)
    who = "the even ranks" if size % 2 == 0 else "rank 0"
    assert finding.next_step.startswith(f"Let {who} send first")
    return [] if finding.change is None else shown(finding.change.lines)


def test_every_second_rank_sends_first_in_an_even_ring_and_one_in_an_odd_ring():
    assert circle(2)[2] == circle(4)[2] == "+if rank % 2 == 0:"
    assert circle(3)[2] == "+if rank == 0:"


def test_a_finding_has_the_change_of_its_next_step():
    pool = Ranks(3)
    pool.code[CELL] = "if rank != 1:\n    dist.all_reduce(x)"
    for rank in (0, 2):
        pool[rank].blocked(line=2)
    pool[1].finished()
    finding = only(pool)
    assert finding.change is not None
    assert finding.change.cell == CELL
    assert code_excerpt.change_text(finding.change) == [
        f"    cell [{CELL}], for example",
        "      - if rank != 1:",
        "      -     dist.all_reduce(x)",
        "      + dist.all_reduce(x)",
    ]
    assert finding.to_dict()["change"]["lines"][2] == {
        "change": "added",
        "line": 0,
        "source": "dist.all_reduce(x)",
    }


def test_a_condition_that_is_not_about_ranks_has_no_change():
    pool = Ranks(2)
    pool.code[CELL] = "if loss > 1:\n    dist.all_reduce(x)"
    pool[0].blocked(line=2)
    pool[1].finished()
    finding = only(pool)
    assert finding.change is None
    assert code_excerpt.change_text(None) == []
    assert code_excerpt.change_html(None) == ""
    assert finding.to_dict()["change"] is None
