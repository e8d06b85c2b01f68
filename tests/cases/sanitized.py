"""Cells that use buffers before ``wait()``, for ``%%ddp --sanitize``: what is found, and fixed.

Nothing hangs in them, and nothing raises.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class WrongCell:
    """A cell with a fault, and the same cell without it."""

    name: str
    code: str
    fixed: str
    kind: str
    words: tuple[str, ...]  #: of the headline, in their order
    lines: tuple[int, ...]  #: those that the card quotes
    culprits: str = "0-1"
    proven: bool = True


def replaced(code: str, *pairs: tuple[str, str]) -> str:
    """The code with texts replaced, each of which must be there."""
    for old, new in pairs:
        assert old in code
        code = code.replace(old, new)
    return code


def _buffer(
    name: str, code: str, fixes: tuple[tuple[str, str], ...], words: tuple[str, ...],
    lines: tuple[int, ...], *, culprits: str = "0-1", proven: bool = True,
) -> WrongCell:  # fmt: skip
    fixed = replaced(code, *fixes)
    return WrongCell(
        name, code, fixed, "buffer-in-use", words, lines, culprits=culprits, proven=proven
    )


_BEGIN = "x = torch.ones(64)\nwork = dist.all_reduce(x, async_op=True)\n"
_END = "\nwork.wait()\n"


def _between(name: str, line: str, words: tuple[str, ...]) -> WrongCell:
    """A line between an operation and its wait, which belongs below the wait."""
    code = f"{_BEGIN}{line}{_END}"
    return _buffer(name, code, ((f"{line}{_END}", f"work.wait()\n{line}\n"),), words, (2, 3))


_HOOKS = """\
layer = torch.nn.Linear(4, 1)
works = []
def send(parameter):
    works.append(dist.all_reduce(parameter.grad, async_op=True))
for parameter in layer.parameters():
    parameter.register_post_accumulate_grad_hook(send)
layer(torch.ones(2, 4)).sum().backward()
layer.weight.grad.div_(2)
for work in works: work.wait()
"""

#: Cells whose operations only read what is touched: a tensor of its own is as good as a wait.
MAY_HAVE_OWN_TENSORS = (
    "write of a message that is being sent",
    "input of a reduce_scatter",
    "the buffer that is sent is the one that is received",
)

BUFFERS = [
    _between("write", "x.add_(1)", ("wrote", "all_reduce", "uses", "add_")),
    _between("write through a view", "x.view(8, 8)[2] = 0", ("wrote", "fill_")),
    _between("write of a column", "x.view(8, 8)[:, 3].mul_(2)", ("wrote", "mul_")),
    _between("write by out", "torch.add(x, 1, out=x[:])", ("wrote", "add")),
    _between("write through a tensor of the same memory", "x.detach().zero_()", ("wrote", "zero_")),
    _between("write by a function of many tensors", "torch._foreach_add_([x], 1)", ("wrote",)),
    _between("write by copy", "x.copy_(torch.zeros(64))", ("wrote", "copy_")),
    _between("read", "total = x.sum()", ("read", "writes", "sum")),
    _between("read of a part", "first = x[0].item()", ("read",)),
    _between("read as a list", "values = x.tolist()", ("read", "tolist")),
    _between("read by print", "print(x)", ("read", "__repr__")),
    _between("read by copy", "y = x.clone()", ("read", "clone")),
    _buffer(
        "read of a received message",
        "x = torch.zeros(4)\nwork = dist.irecv(x, 1 - rank)\n"
        "dist.send(torch.ones(4), 1 - rank)\nprint(float(x[0]))\nwork.wait()\n",
        (("print(float(x[0]))\nwork.wait()", "work.wait()\nprint(float(x[0]))"),),
        ("read", "recv"),
        (2, 4),
    ),
    # Gloo has the address of the memory from before, which `kept` keeps.
    _buffer(
        "other memory for a tensor that is being received",
        "x = torch.zeros(4)\nwork = dist.irecv(x, 1 - rank)\nkept = x.untyped_storage()\n"
        "x.set_(torch.ones(4))\ndist.send(torch.ones(4), 1 - rank)\nwork.wait()\n",
        (
            ("x.set_(torch.ones(4))\n", ""),
            ("work.wait()\n", "work.wait()\nx.set_(torch.ones(4))\n"),
        ),
        ("replaced a tensor", "recv", "uses", "set_"),
        (2, 4),
    ),
    _between("other data for a tensor", "x.data = torch.zeros(64)", ("replaced a tensor", "data")),
    _buffer(
        "memory that is freed through the storage",
        f"{_BEGIN}while not work.inner.is_completed(): pass\n"
        "x.untyped_storage().resize_(0)\nwork.wait()\n",
        (
            ("x.untyped_storage().resize_(0)\nwork.wait()", "work.wait()"),
            ("work.wait()\n", "work.wait()\nx.untyped_storage().resize_(0)\n"),
        ),
        ("replaced a tensor", "untyped_storage().resize_"),
        (2, 4),
    ),
    _buffer(
        "write of a message that is being sent",
        "x = torch.ones(4)\nwork = dist.isend(x, 1 - rank)\n"
        "dist.recv(torch.empty(4), 1 - rank)\nx.zero_()\nwork.wait()\n",
        (("x.zero_()\nwork.wait()", "work.wait()\nx.zero_()"),),
        ("wrote", "send", "uses"),
        (2, 4),
    ),
    _buffer(
        "only one rank writes",
        f"{_BEGIN}if rank == 1:\n    x += rank{_END}",
        ((_END, "\n"), ("if rank == 1:", "work.wait()\nif rank == 1:")),
        ("Rank 1 wrote",),
        (2, 4),
        culprits="1",
    ),
    _buffer(
        "gathered parts",
        "parts = [torch.zeros(2) for _ in range(2)]\n"
        "work = dist.all_gather(parts, torch.ones(2), async_op=True)\nwhole = torch.cat(parts)\n"
        "work.wait()\n",
        (("whole = torch.cat(parts)\nwork.wait()", "work.wait()\nwhole = torch.cat(parts)"),),
        ("read", "all_gather", "cat"),
        (2, 3),
    ),
    _buffer(
        "input of a reduce_scatter",
        "x, out = torch.ones(4), torch.empty(2)\n"
        "work = dist.reduce_scatter_tensor(out, x, async_op=True)\nx.zero_()\nwork.wait()\n",
        (("x.zero_()\nwork.wait()", "work.wait()\nx.zero_()"),),
        ("wrote", "that reduce_scatter_tensor still uses"),
        (2, 3),
    ),
    _buffer(
        "two operations on one tensor",
        f"{_BEGIN}second = dist.all_reduce(x, async_op=True)\nsecond.wait(){_END}",
        ((f"second.wait(){_END}", "second.wait()\n"), ("second = ", "work.wait()\nsecond = ")),
        ("gave memory of the 1st all_reduce", "to all_reduce"),
        (2, 3),
    ),
    _buffer(
        "a synchronous operation on memory of an open one",
        f"{_BEGIN}dist.broadcast(x[:8], 0){_END}",
        ((_END, "\n"), ("dist.broadcast", "work.wait()\ndist.broadcast")),
        ("gave memory of all_reduce", "to broadcast"),
        (2, 3),
    ),
    _buffer(
        "the buffer that is sent is the one that is received",
        "x = torch.full((2,), float(rank))\nsend = dist.isend(x, 1 - rank)\n"
        "recv = dist.irecv(x, 1 - rank)\nsend.wait()\nrecv.wait()\n",
        (("recv = dist.irecv(x, ", "y = torch.empty(2)\nrecv = dist.irecv(y, "),),
        ("gave memory of send", "to recv"),
        (2, 3),
    ),
    _buffer(
        "handle that is not kept",
        "x = torch.ones(4)\ndist.all_reduce(x, async_op=True)\nx = None\n",
        (("dist.all", "work = dist.all"), ("=True)\n", "=True)\nwork.wait()\n")),
        ("Nothing has waited", "its handle was deleted"),
        (2,),
    ),
    _buffer(
        "handles that a function drops, and results that are read later",
        """\
def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor, async_op=True)
        tensor /= world_size
a, b = torch.ones(5), torch.ones(5)
average([a, b])
print(a + b)
""",
        (("async_op=True", "async_op=False"),),
        ("wrote", "div_"),
        (3, 4),
    ),
    _buffer(
        "buffer that is filled again, and sent again",
        """\
buffer, works = torch.zeros(4), []
for step in range(3):
    buffer.copy_(torch.full((4,), float(step)))
    works.append(dist.all_reduce(buffer, async_op=True))
for work in works: work.wait()
""",
        (("buffer.copy_", "buffer = torch.zeros(4); buffer.copy_"),),
        ("wrote", "copy_"),
        (3, 4),
    ),
    _buffer(
        "handle that nothing has waited for",
        "x = torch.ones(4)\nkept_work = dist.all_reduce(x, async_op=True)\n",
        (("=True)\n", "=True)\nkept_work.wait()\n"),),
        ("Nothing has waited", "may not be there yet"),
        (2,),
        proven=False,
    ),
    _buffer(
        "gradients that hooks send",
        _HOOKS,
        (
            ("layer.weight.grad.div_(2)\n", ""),
            ("work.wait()\n", "work.wait()\nlayer.weight.grad.div_(2)\n"),
        ),
        ("wrote", "div_"),
        (4, 8),
    ),
    _buffer(
        "hook that sends the gradient which autograd then adds",
        """\
weight = torch.ones(4, requires_grad=True)
works = []
def send(grad):
    works.append(dist.all_reduce(grad, async_op=True))
handle = weight.register_hook(send)
for step in range(2):
    (weight * 2).sum().backward()
    works.pop().wait()
""",
        (
            ("works.append(dist.all_reduce(grad, async_op=True))", "dist.all_reduce(grad)"),
            ("    works.pop().wait()\n", ""),
        ),
        ("read", "all_reduce"),
        (4, 7),
    ),
]
