"""A finding names the line that makes a loop shorter on some ranks."""

import msgspec
import pytest

from nbddp.controller.diagnosis import Finding
from tests.support.looks import CELL, Ranks, only, site

_LOOP = "for step, x in enumerate(data):\n    dist.all_reduce(x)"


def shorter(source: str, *, line: int, has_variable: bool = True) -> Finding:
    """What is found when rank 1 of three made two calls in a loop, and the others wait in a third.

    Args:
        source: of the cell.
        line: of the calls.
        has_variable: whether the records have the loop's variable, ``step``.
    """
    pool = Ranks(3)
    pool.code[CELL] = source

    def at(step: int) -> list[tuple[str, int]]:
        return [("step", step)] if has_variable else []

    for rank in range(3):
        for step in range(2):
            pool[rank].done(line=line, iteration=at(step))
    for rank in (0, 2):
        pool[rank].blocked(line=line, iteration=at(2))
    pool[1].finished()
    return only(pool)


def code(finding: Finding) -> list[str]:
    return [f"{line.site.cell}:{line.site.line} {line.site.source}" for line in finding.code]


def test_the_last_iterations():
    assert shorter(_LOOP, line=2).next_step == (
        "Give every rank the same number of iterations of `for step, x in enumerate(data):` "
        "(line 1), for example the smallest number of all ranks, by all_reduce with ReduceOp.MIN: "
        "rank 1 ended after step 1, ranks 0,2 are in step 2."
    )


@pytest.mark.parametrize(
    ("header", "how"),
    [
        ("for name, x in values.items():", "."),
        ("for x in [a] if rank else [a, a]:", ", which depends on the rank."),
        ("while time.time() < end:", ", for example by an all_reduce of its condition."),
        (
            "for x in DataLoader(items, batch_sampler=own):",
            ", for example by a `batch_sampler` that is equally long on all ranks.",
        ),
        (
            "for x in DataLoader(items, 4):",
            ", for example the smallest number of all ranks, by all_reduce with ReduceOp.MIN.",
        ),
    ],
)
def test_the_advice_fits_to_what_the_loop_is_over(header: str, how: str):
    finding = shorter(f"{header}\n    dist.all_reduce(x)", line=2, has_variable=False)
    assert finding.next_step.endswith(f"`{header}` (line 1){how}")
    assert ("as if the data is split unevenly" in finding.suspicions[0]) == ("Data" in header)


@pytest.mark.parametrize(
    ("condition", "is_named"),
    [
        ("if rank == 1 and i == 2: continue", True),
        ("if rank == 1 and i == 2: return", True),
        ("if rank == 1: yield i", True),
        ("if rank == 1: print(i)", False),
        ("if i == 2: continue", False),
    ],
)
def test_a_condition_in_the_generator_of_the_items_is_named(condition: str, *, is_named: bool):
    cell = f"""\
def gen():
    for i in range(4):
        {condition}
        yield i
for step in gen():
    dist.all_reduce(x)"""
    next_step = shorter(cell, line=6).next_step
    head = "Give every rank the same number of iterations of `for step in gen():` (line 5)"
    how = f", which depends on the rank in line 3, `{condition}`"
    assert next_step.startswith(f"{head}{how if is_named else ''}: rank 1 ended after step 1")


@pytest.mark.parametrize(
    "body",
    [
        "for i in range(4):\n        yield i\n        if rank == 1: continue",
        "for i in range(4):\n        if rank == 1: yield i\n        else: yield -i",
        "yield from range(4)\n    if rank == 1: return",
    ],
)
def test_a_condition_that_leaves_the_number_of_items_is_not_named(body: str):
    cell = f"def gen():\n    {body}\nfor step in gen():\n    dist.all_reduce(x)"
    assert "depends on the rank" not in shorter(cell, line=cell.count("\n") + 1).next_step


def test_the_call_that_gives_the_length_is_named():
    cell = """\
def scatter(n):
    for step in range(n):
        dist.all_reduce(x)
scatter(3 + (rank == 2))"""
    pool = Ranks(3)
    pool.code[CELL] = cell
    stack = (site(3, "dist.all_reduce(x)", function="scatter"), site(4))
    for rank in range(3):
        for step in range(2):
            pool[rank].done(line=3, iteration=[("step", step)])
    for rank in (0, 2):
        record = pool[rank].issue(line=3, iteration=[("step", 2)])
        pool[rank].waits(record, stack=stack)
    pool[1].finished()
    for rank in range(3):
        operations = pool[rank].operations
        operations[:] = [
            msgspec.structs.replace(each, site=site(3, "dist.all_reduce(x)", function="scatter"))
            for each in operations
        ]
    assert only(pool).next_step == (
        "Give every rank the same number of iterations of `for step in range(n):` (line 2), which "
        "depends on the rank in line 4, `scatter(3 + (rank == 2))`: rank 1 ended after step 1, "
        "ranks 0,2 are in step 2."
    )


def test_ranks_that_ended_ahead_of_others_are_not_in_an_earlier_iteration():
    pool = Ranks(2)
    pool.code[CELL] = (
        "for epoch in range(2):\n    for it in range(3 if rank else 2):\n        dist.all_reduce(x)"
    )
    for rank, length in enumerate((2, 3)):
        calls = [(epoch, it) for epoch in range(2) for it in range(length)]
        for epoch, it in calls[:4]:
            pool[rank].done(line=3, iteration=[("epoch", epoch), ("it", it)])
    pool[0].finished()
    pool[1].blocked(line=3, iteration=[("epoch", 1), ("it", 1)])
    hang, shift = pool.diagnose().findings
    assert hang.next_step.endswith("(line 2), which depends on the rank.")
    assert shift.is_consequence


def test_a_number_that_depends_on_the_rank():
    source = f"n = 5 if rank != 1 else 3\ndata = (torch.ones(2) for _ in range(n))\n{_LOOP}"
    finding = shorter(source, line=4)
    assert finding.next_step == (
        "Make `n` the same on all ranks (line 1): in the loop of line 3, rank 1 ended after "
        "step 1, ranks 0,2 are in step 2."
    )
    assert code(finding) == [
        f"{CELL}:1 n = 5 if rank != 1 else 3",
        f"{CELL}:2 data = (torch.ones(2) for _ in range(n))",
        f"{CELL}:3 for step, x in enumerate(data):",
        f"{CELL}:4     dist.all_reduce(x)",
    ]


def test_without_a_variable_of_the_loop():
    source = f"data = load(rank)\n{_LOOP.replace('step, x in enumerate(data)', 'x in data')}"
    assert shorter(source, line=3, has_variable=False).next_step == (
        "Make `data` equally long on all ranks (line 1): the loop of line 2 is shorter on rank 1."
    )


def test_a_change_that_is_known_is_the_next_step():
    finding = shorter(f"data = [torch.ones(2)] * (3 - rank)\n{_LOOP}", line=3)
    assert finding.change is not None
    assert "for example the smallest number of all ranks" in finding.next_step
    assert [line.site.line for line in finding.code] == [2, 3]


def test_items_that_differ_are_to_be_equally_long():
    source = "data = range(9) if rank == 0 else range(9, 16)"
    assert shorter(f"{source}\n{_LOOP}", line=3).next_step.startswith(
        "Make `data` equally long on all ranks (line 1)"
    )


@pytest.mark.parametrize(
    ("source", "name", "line"),
    [
        ("data = torch.arange(9)[rank::world_size].tolist()", "data", 1),
        ("data = items[rank]", "data", 1),
        ("data = load(items[dist.get_rank() :: 2])", "data", 1),
        ("n = 3 + rank\ndata = range(n)", "n", 1),
        ("many = 3 + rank\nn = many * 2\ndata = make(n)", "many", 1),
        ("data = load()\nif rank == 1:\n    data = data[:2]", "data", 3),
        ("n = 4\nif rank == 1:\n    n -= 1\ndata = range(n)", "n", 3),
        ("mine = split(items, rank)\ndata = zip(mine, labels)", "mine", 1),
        ("size = 2 + rank\nloader = DataLoader(items, size)\ndata = iter(loader)", "size", 1),
        ("data = (x for x in items if x % world_size == rank)", "data", 1),
    ],
)
def test_the_line_that_depends_on_the_rank(source: str, name: str, line: int):
    at = source.count("\n") + 3
    assert shorter(f"{source}\n{_LOOP}", line=at).next_step.startswith(
        (f"Make `{name}` the same on all ranks (line {line})",
         f"Make `{name}` equally long on all ranks (line {line})")
    )  # fmt: skip


@pytest.mark.parametrize(
    "source",
    [
        "data = torch.full((5,), rank)",
        "data = load()",
        "data = load().to(rank)",
        "data = load(seed=rank)",
        "data = load()\ndata = data[rank:]",  # two assignments: either may hold
        "sampler = DistributedSampler(items, rank=rank)\ndata = DataLoader(items, sampler=sampler)",
        "data = data",
    ],
)
def test_lines_that_do_not_set_the_length(source: str):
    at = source.count("\n") + 3
    finding = shorter(f"{source}\n{_LOOP}", line=at)
    assert "same number of iterations" in finding.next_step
    assert [line.site.line for line in finding.code] == [at - 1, at]


def test_an_argument_of_the_function_with_the_loop():
    train = "def train(data):\n    for step, x in enumerate(data):\n        dist.all_reduce(x)"
    call = "n = 3 - rank\nitems = [torch.ones(2)] * n\ntrain(items)"
    pool = Ranks(2)
    pool.code[CELL] = train
    pool.code[CELL + 1] = call
    there = site(3, function="train")
    caller = msgspec.structs.replace(site(3, "train(items)"), cell=CELL + 1)
    for rank in range(2):
        for step in range(2):
            pool[rank].done(line=3, iteration=[("step", step)])
    pool[0].waits(pool[0].issue(line=3, iteration=[("step", 2)]), stack=(there, caller))
    pool[1].finished()
    finding = only(pool)
    assert finding.next_step == (
        f"Make `n` the same on all ranks (line 1 of cell [{CELL + 1}]): in the loop of line 2 of "
        f"cell [{CELL}], rank 1 ended after step 1, rank 0 is in step 2."
    )
    assert code(finding) == [
        f"{CELL + 1}:1 n = 3 - rank",
        f"{CELL + 1}:2 items = [torch.ones(2)] * n",
        f"{CELL + 1}:3 train(items)",
        f"{CELL}:2     for step, x in enumerate(data):",
        f"{CELL}:3         dist.all_reduce(x)",
    ]


@pytest.mark.parametrize(
    ("definition", "header", "words"),
    [
        ("sizes = [2] if rank else [3]", "range(sizes[0])", "`sizes[0]` the same"),
        ("sizes = [2] if rank else [3]\nn = sizes[0]", "range(n)", "`sizes[0]` the same"),
        ("data = [[1, 2]] if rank else [[1]]", "data[0]", "`data[0]` equally long"),
        ("data = [[1, 2]] if rank else [[1]]", "range(len(data[0]))", "`data[0]` equally long"),
        ("data = [1, 2] if rank else [1]", "range(len(data))", "`data` equally long"),
        ("data = [1, 2] if rank else [1]", "data[:4]", "`data` equally long"),
        ("a = [1, 2] if rank else [1]", "range(a[0] + len(a))", "`a` equally long"),
    ],
)
def test_an_item_of_a_value_that_sets_the_length(definition: str, header: str, words: str):
    source = f"{definition}\nfor step in {header}:\n    dist.all_reduce(x)"
    finding = shorter(source, line=source.count("\n") + 1)
    assert finding.next_step.startswith(f"Make {words} on all ranks (line 1)")


@pytest.mark.parametrize(
    ("value", "items", "alike"),
    [
        ("torch.tensor(2 + rank)", "range(int(n))", "the same"),
        ("torch.tensor(2 + rank)", "data[:n]", "the same"),
        ("count(rank)", "range(max(1, n))", "the same"),
        ("load(rank)", "range(count(n))", "equally long"),
        ("load(rank)", "range(len(n))", "equally long"),
        ("torch.tensor([1.0] * rank)", "n", "equally long"),
    ],
)
def test_a_number_has_no_length(value: str, items: str, alike: str):
    finding = shorter(f"n = {value}\nfor step in {items}:\n    dist.all_reduce(x)", line=3)
    assert finding.next_step.startswith(f"Make `n` {alike} on all ranks (line 1)")
