"""Changes of loops that are shorter on some ranks; tests/pool runs those that are made."""

import pytest

from nbddp.controller.diagnosis import Code
from nbddp.controller.diagnosis.divergence import Divergence
from nbddp.controller.diagnosis.uneven_loops import even_loop
from nbddp.wire.flight_recorder import Site
from tests.support.changes import apply_change

_EARLIER = 2
_CELL = 4
_LOADER = "loader = DataLoader(torch.arange(9)[rank::world_size], batch_size=2)"
_DDP = "net = DDP(model)"
_TRAIN = "for x in loader:\n    net(x).backward()"


def changed(code: str, earlier: str = "", *, world_size: int = 2) -> str:
    """The cell or, with its number in front, the earlier cell after the change; empty: none."""
    texts = {_EARLIER: earlier, _CELL: code}

    def sources(site: Site) -> Code | None:
        return Code(texts[site.cell]) if texts.get(site.cell) else None

    line = next(n for n, text in enumerate(code.splitlines(), 1) if "for " in text) + 1
    site = Site("<cell>", line, "<module>", code.splitlines()[line - 1], _CELL)
    source = Code(code)
    loops = [each for each in source.branches(line) if each.kind == "loop"]
    change = even_loop(Divergence(site, source, loop=loops[0]), sources, world_size)
    return "" if change is None else apply_change(texts[change.cell], change.lines)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(data, 4)", "DataLoader(data, 4, drop_last=True)"),
        ("DataLoader(data, batch_size=4,)", "DataLoader(data, batch_size=4, drop_last=True,)"),
        ("DataLoader(data, size, pin_memory=f(1))", "pin_memory=f(1), drop_last=True)"),
        ("DataLoader(data, pin_memory=f(1), batch_size=size)", "batch_size=size, drop_last=True)"),
        ("DataLoader('é', 4)", ""),
        ("DataLoader(data, batch_size=(4))", ""),  # the end of the argument is not that of its text
        ("DataLoader(data, 1)", ""),  # each batch is whole
        ("DataLoader(data)", ""),
        ("DataLoader(data, batch_size=n)", ""),
        ("DataLoader(data, 4, sampler=sampler)", ""),
        ("DataLoader(data, 4, drop_last=False)", ""),
        ("DataLoader(data, 4, **options)", ""),
        ("DataLoader(other, 4)", ""),  # whatever its length is
        ("load(data, 4)", ""),
    ],
)
def test_an_argument_of_the_loader(before: str, after: str):
    code = f"size = 4\nfor x in enumerate({before}):\n    dist.all_reduce(x)"
    found = changed(code, "data = load()[rank::world_size]")
    assert bool(found) is bool(after)
    assert after in found


@pytest.mark.parametrize(
    ("data", "has_change"),
    [
        ("x[rank::world_size]", True),
        ("x[dist.get_rank()::dist.get_world_size()]", True),
        ("Subset(x, range(rank, len(x), world_size))", True),
        ("Subset(x, range(len(x)))", False),
        ("Subset(x, chosen(rank, len(x), world_size))", False),
        ("x[rank::2 * world_size]", False),
        ("x[rank * 10:]", False),
        ("x[rank]", False),
        ("torch.arange(9)[rank::world_size]", True),
        ("torch.arange(8)[rank::world_size]", False),  # the ranks have equally much
        ("torch.arange(9)[rank:]", True),
        ("torch.arange(8)[begin:]", False),
        ("TensorDataset(torch.zeros(4 + rank, 2), labels)", True),
        ("torch.zeros((4 + rank, 2))", True),
        ("range(8 + 4 * rank)", False),  # a whole batch more
        ("torch.arange(3 + 2 * rank)", False),  # no whole batch on rank 0
        ("torch.arange(3, 8)", False),
    ],
)
def test_data_that_differs_by_an_incomplete_batch(data: str, *, has_change: bool):
    code = f"for x in DataLoader({data}, 4):\n    dist.all_reduce(x)"
    assert bool(changed(code)) is has_change


LOOPS = {
    "in the cell": (f"{_LOADER}\n{_TRAIN}", ""),
    "in an earlier cell": (_TRAIN, _LOADER),
    "in the function": (
        "def f():\n    loader = DataLoader(range(4 + rank), 4)\n    for x in loader:\n        x",
        "",
    ),
}
OTHER_LOOPS = {
    "unknown": (_TRAIN, ""),
    "bound twice": (f"{_LOADER}\nloader = f(loader)\n{_TRAIN}", ""),
    "bound later": (f"{_TRAIN}\n{_LOADER}", ""),
    "bound in a loop": (f"for loader in [1]:\n    pass\n{_TRAIN}", ""),
    "a parameter": (f"def f(loader):\n    {_TRAIN}".replace("\n    net", "\n        net"), _LOADER),
    "global in a function": (
        f"{_LOADER}\ndef f():\n    {_TRAIN}".replace("\n    net", "\n        net"),
        "",
    ),
    "imported": (_TRAIN, "from data import loader"),
    "a function": (_TRAIN, "def loader(): pass"),
    "a class": (_TRAIN, "class loader: pass"),
    "while": ("while more():  # for x\n    dist.all_reduce(x)", ""),
    "unpacked": (_TRAIN, f"loader, y = {_LOADER}, 1"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loader_that_is_known(name: str):
    assert "drop_last=True" in changed(*LOOPS[name])


@pytest.mark.parametrize("name", OTHER_LOOPS)
def test_a_loader_that_may_be_anything(name: str):
    assert changed(*OTHER_LOOPS[name]) == ""


def test_a_loop_that_trains_is_joined():
    assert changed(_TRAIN, _DDP) == (
        "with net.join():\n    for x in loader:\n        net(x).backward()\n"
    )


@pytest.mark.parametrize(
    ("code", "earlier"),
    [
        (_TRAIN, "net = model"),
        (_TRAIN, "net = DDP(SyncBatchNorm.convert_sync_batchnorm(model))"),
        (f"{_TRAIN}\n    dist.all_reduce(x)", _DDP),
        ("for x in loader:\n    net(x)", _DDP),
        (f"{_TRAIN}\n    other(x)", f"{_DDP}\nother = DDP(model)"),
        (_TRAIN, f"{_DDP}\nopt = ZeroRedundancyOptimizer(net.parameters())"),
        (_TRAIN + "\n    x" * 20, _DDP),
        (f'{_TRAIN}\n    """a\nb"""', _DDP),
    ],
)
def test_a_loop_that_cannot_be_joined(code: str, earlier: str):
    assert changed(code, earlier) == ""


_TWO = f"{_DDP}\nother = DDP(model, broadcast_buffers=False)"
_APART = """\
for x, y in loader:
    opt.zero_grad()
    loss = criterion(other(x), y)
    loss.backward()
    losses.append(loss.item())
    opt.step()
    total += loss.item()
    loss = net(x).sum()
    loss.backward()
    if total > 3:
        print(total)"""


def test_a_loop_that_trains_two_models_one_after_the_other_is_joined():
    assert changed(_APART, _TWO).startswith(
        "from torch.distributed.algorithms import Join\nwith Join([other, net]):\n    for x, y in"
    )


@pytest.mark.parametrize(
    "body",
    [
        "(net(x) + other(x)).backward()",
        "a = net(x); b = other(x); a.backward(); b.backward()",
        "net(x).backward(); net(x).backward(); other(x).backward()",
        "net(x).backward(); other(x)",
        "other(x); net(x).backward(); other(x).backward()",
        "a = net(x); a.backward(); other(a).backward()",
        "a = net(x); a.backward(); a = a + 1; other(a).backward()",
        "other(last).backward(); last = net(x); last.backward()",
        "a = net(x); a.backward(); h.append(a); other(h[0]).backward()",
        "a = net(x); a.backward(); h[0] = a; other(h[0]).backward()",
        "net(x).backward(); other(net.module(x)).backward()",
        "net(x).backward(); other(x, net).backward()",
        "net(x).backward()\n    if x: other(x).backward()",
        "net(x).backward()\n    if x: continue\n    other(x).backward()",
        "net(x).backward()\n    with torch.no_grad(): other(x).backward()",
        "net(x).backward(); y = other(x) if x else x; y.backward()",
        "net(x).backward(); [other(x) for _ in x][0].backward()",
        "net(x).backward(); other(x).backward(); net(x)",
    ],
)
def test_two_models_that_are_not_trained_one_after_the_other(body: str):
    assert changed(f"for x in loader:\n    {body}", _TWO) == ""


@pytest.mark.parametrize("option", ["process_group=g", "static_graph=True", "**options"])
def test_models_that_may_not_be_joined_together(option: str):
    assert changed(_APART, f"{_DDP}\nother = DDP(model, {option})") == ""


@pytest.mark.parametrize(
    "batches",
    ["[x] * (3 + rank)", "[*data, x]", "data.split(2)", "list(load())", "[x][rank:]"],
)
def test_a_loop_over_a_list_takes_the_smallest_number_of_all_ranks(batches: str):
    code = f"batches = {batches}\nfor step, x in enumerate(batches, 1):\n    dist.all_reduce(x)"
    assert changed(code).splitlines()[1:4] == [
        "shortest = torch.tensor(len(batches), device=device)",
        "dist.all_reduce(shortest, op=dist.ReduceOp.MIN)",
        "for step, x in enumerate(batches[:shortest], 1):",
    ]


@pytest.mark.parametrize(
    "code",
    [
        "batches = load()\nfor x in batches:\n    dist.all_reduce(x)",
        "batches = [1]\nif rank:\n    for x in batches:\n        dist.all_reduce(x)",
        "batches = [1]\nshortest = 2\nfor x in batches:\n    dist.all_reduce(x)",
        "for x in [1] * rank:\n    dist.all_reduce(x)",
    ],
)
def test_a_loop_that_is_not_known_to_be_over_a_list(code: str):
    assert changed(code) == ""
