"""Faults of ``%%ddp --fault`` at random: the texts, and cells of each kind of work."""

import random

from tests.soak.faults import Fault, press

_TURNS = 12
_ACTS = ("delay", "stop", "raise", "kill", "skip", "flip", "nan", "link", "store", "random")

_COLLECTIVES = f"""\
print("in", flush=True)
t = torch.ones(1000)
for i in range({_TURNS}):
    dist.all_reduce(t)
    t /= world_size
    if i % 4 == 3: dist.barrier()
    dist.broadcast(t, i % world_size)
"""
_HANDLES = f"""\
print("in", flush=True)
for i in range({_TURNS}):
    works = [dist.all_reduce(torch.ones(50_000), async_op=True) for _ in range(3)]
    for work in works: work.wait()
"""
_TRAINING = f"""\
print("in", flush=True)
for i in range({_TURNS}):
    model.zero_grad()
    model(torch.full((8, 4), float(rank))).sum().backward()
"""
_MESSAGES = f"""\
print("in", flush=True)
t = torch.ones(1000)
for i in range({_TURNS}):
    if rank == 0: dist.send(t, 1); dist.recv(t, 1)
    elif rank == 1: dist.recv(t, 0); dist.send(t, 0)
dist.barrier()
"""
_GROUPS = f"""\
print("in", flush=True)
for i in range({_TURNS}):
    dist.all_reduce(torch.ones(10), group=everyone)
    if rank < 2: dist.all_reduce(torch.ones(10), group=low)
    g = dist.new_group(); dist.barrier(group=g); dist.destroy_process_group(g)
"""
_OBJECTS = f"""\
print("in", flush=True)
found = [None] * world_size
for i in range({_TURNS}):
    dist.all_gather_object(found, (rank, "x" * 1000))
"""
_FUNCTIONS = f"""\
print("in", flush=True)
def add(x, i):
    for k in range(2):
        x = x + i * k
    dist.all_reduce(x)
    return x
def work():
    total = torch.zeros(10)
    for i in range({_TURNS}):
        total = total / world_size
        total = add(total, i)
    assert i == {_TURNS} - 1
    return total
result = work()
"""


def texts(chance: random.Random, n: int) -> str:
    """One fault or several."""
    return "; ".join(_text(chance, n) for _ in range(chance.choice([1, 1, 1, 2, 3])))


def _text(chance: random.Random, n: int) -> str:  # noqa: PLR0911 - one for each act
    rank = f"rank {chance.randrange(n)}"
    call = chance.choice([
        f"{chance.choice(['all_reduce', 'barrier', 'broadcast', 'all_gather', 'send', 'recv'])}"
        f" #{chance.randint(1, 4)}",
        "the next all_reduce",
        f"operation #{chance.randint(1, 25)}",
    ])  # fmt: skip
    turn = chance.randrange(_TURNS)
    moment = chance.choice(["", f" at line {chance.randint(2, 8)}", f" at i = {turn}",
                            f" before {call}"])  # fmt: skip
    last = chance.randint(1, 200)
    match chance.choice(_ACTS):
        case "delay":
            return f"{rank}: delay {last} ms{moment}"
        case "stop":
            return f"{rank}: stop {last} ms{moment}"
        case "raise":
            return f"{rank}: raise {chance.choice(['OSError', 'OutOfMemoryError'])}{moment}"
        case "kill":
            return f"{rank}: kill{moment}"
        case "skip":
            return f"{rank}: skip {call}"
        case "flip":
            return f"{rank}: flip a bit in operation #{turn + 1}"
        case "nan":
            return f"nan in {rank}'s gradient"
        case "link":
            return f"link 0-{n - 1}: {chance.randint(1, 10)} ms, 100 MB/s"
        case "store":
            return f"store: slow {chance.randint(1, 10)} ms"
        case _:
            return f"random: seed={last}, rate=0.02"


CELLS = {
    "collectives": _COLLECTIVES,
    "handles": _HANDLES,
    "training": _TRAINING,
    "messages": _MESSAGES,
    "groups": _GROUPS,
    "objects": _OBJECTS,
    "functions": _FUNCTIONS,
}
KINDS = (
    *(Fault(f"on purpose: {name}", code, exits=True, texts=texts) for name, code in CELLS.items()),
    *(
        Fault(f"on purpose, and a press: {name}", code, press(0, 0.2), exits=True, texts=texts)
        for name, code in CELLS.items()
    ),
)
