"""Cells in which ranks call collectives or messages in another order, for ``%%ddp --sanitize``."""

from tests.cases.sanitized import WrongCell, replaced


def _lines(
    name: str, code: str, words: tuple[str, ...], lines: tuple[int, ...], *fixes: tuple[str, str]
) -> WrongCell:
    fixed = replaced(code, *fixes)
    return WrongCell(name, code, fixed, "crossed-lines", words, lines, proven=False)


LINES = [
    _lines(
        "two tensors in another order",
        """\
a, b = torch.zeros(2), torch.ones(2)
if rank == 0:
    dist.all_reduce(a)
    dist.all_reduce(b)
else:
    dist.all_reduce(b)
    dist.all_reduce(a)
""",
        ("called the 1st all_reduce", "with '", "with '", "meant to be mixed"),
        (3, 6),
        (
            "    dist.all_reduce(b)\nelse:\n",
            "    dist.all_reduce(b)\nelse:\n    dist.all_reduce(a)\n",
        ),
        ("(b)\n    dist.all_reduce(a)\n", "(b)\n"),
    ),
    _lines(
        "functions in another order",
        """\
def weights(x):
    dist.all_reduce(x * 2)
def biases(x):
    dist.all_reduce(x * 3)
order = [weights, biases]
for function in order if rank == 0 else order[::-1]:
    function(torch.ones(2))
""",
        ("called the 1st all_reduce", "at line", "at line"),
        (2, 4),
        ("order if rank == 0 else order[::-1]", "order"),
    ),
    _lines(
        "call that one rank makes before the others",
        """\
total, count = torch.ones(1), torch.ones(1)
if rank == 1:
    dist.all_reduce(count)
for tensor in [total, total]:
    dist.all_reduce(total)
if rank == 0:
    dist.all_reduce(count)
""",
        ("called the 1st all_reduce", "with '"),
        (3, 5),
        ("if rank == 1:\n    dist.all_reduce(count)\n", ""),
        ("if rank == 0:", "if True:"),
    ),
    _lines(
        "messages in another order",
        """\
weights, bias = torch.full((2,), float(rank)), torch.zeros(2)
if rank == 0:
    dist.send(weights, 1)
    dist.send(bias, 1)
else:
    dist.recv(bias, 0)
    dist.recv(weights, 0)
""",
        ("Rank 1 received 'weights' of rank 0 as 'bias'", "in another order"),
        (3, 6),
        (
            "    dist.recv(bias, 0)\n    dist.recv(weights, 0)\n",
            "    dist.recv(weights, 0)\n    dist.recv(bias, 0)\n",
        ),
    ),
    _lines(
        "messages that are received a step late",
        """\
a, b, c = (torch.full((2,), float(i)) for i in range(3))
if rank == 1:
    works = [dist.isend(a, 0)]
    works.append(dist.isend(b, 0))
    works.append(dist.isend(c, 0))
else:
    works = [dist.irecv(b, 1)]
    works.append(dist.irecv(c, 1))
    works.append(dist.irecv(a, 1))
for work in works: work.wait()
""",
        ("Rank 0 received 'a' of rank 1 as 'b'",),
        (3, 7),
        ("[dist.irecv(b, 1)]", "[dist.irecv(a, 1)]"),
        (
            "append(dist.irecv(c, 1))\n    works.append(dist.irecv(a, 1))",
            "append(dist.irecv(b, 1))\n    works.append(dist.irecv(c, 1))",
        ),
    ),
]

#: They stay silent; see `sanitized_correct`.
CORRECT_LINES = {
    "root and others at different lines": """\
if rank == 0:
    full = torch.ones(4)
    dist.broadcast(full, 0)
else:
    empty = torch.empty(4)
    dist.broadcast(empty, 0)
for step in range(3):
    dist.all_reduce(torch.ones(1))
""",
    "a rank without data": """\
loss, nothing = torch.ones(1), torch.zeros(1)
for step in range(3):
    if rank == 0 or step < 2:
        dist.all_reduce(loss)
    else:
        dist.all_reduce(nothing)
""",
    "ranks that take turns at one tensor": """\
x = torch.ones(2)
for step in range(4):
    if step % 2 == rank:
        dist.all_reduce(x)
    else:
        work = dist.all_reduce(x, async_op=True)
        work.wait()
""",
    "messages with names of each end": """\
x, y = torch.zeros(2), torch.ones(2)
for step in range(3):
    if rank == 0:
        dist.send(x, 1)
        dist.recv(y, 1)
    else:
        dist.recv(y, 0)
        dist.send(x, 0)
    x, y = y, x
""",
    "messages with tags in another order": """\
x, y = torch.zeros(2), torch.ones(2)
if rank == 0:
    works = [dist.isend(x, 1, tag=1)]
    works.append(dist.isend(y, 1, tag=2))
else:
    works = [dist.irecv(y, 0, tag=2)]
    works.append(dist.irecv(x, 0, tag=1))
for work in works: work.wait()
""",
    "groups of their own": """\
groups = [dist.new_group([0]), dist.new_group([1])]
a, b = torch.ones(2), torch.ones(2)
for tensor in (a, b) if rank == 0 else (b, a):
    dist.all_reduce(tensor, group=groups[rank])
dist.all_reduce(a)
for group in groups:
    if group is not dist.GroupMember.NON_GROUP_MEMBER: dist.destroy_process_group(group)
""",
}
