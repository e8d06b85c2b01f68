"""The table of faults. Cells print ``in`` when they are in the middle of their work."""

from tests.soak.faults import Fault, both, kill, kill_all, press, restart, stop_and_continue

_SLEEP = "print('in', flush=True)\ntime.sleep(100)"
_LOOP = "print('in', flush=True)\nwhile True: pass"
_REDUCE = "print('in', flush=True)\nwhile True: dist.all_reduce(torch.ones(1000))"
_LARGE = "print('in', flush=True)\nwhile True: dist.all_reduce(torch.ones(1_000_000))"
_FLOOD = "print('in', flush=True)\nwhile True: print('line of', step, rank)"
_DISPLAYS = (
    "from IPython.display import display\nprint('in', flush=True)\nwhile True: display(step)"
)
_C_CODE = "print('in', flush=True)\nfor _ in range(40): sum(range(4_000_000)); print('C', step)"
_GIL = "print('in', flush=True)\nsum(range(60_000_000))"
_LOCK = "lock = threading.Lock(); lock.acquire()\nprint('in', flush=True)\nlock.acquire()"
_OBJECTS = (
    "found = [None] * world_size\nprint('in', flush=True)\n"
    "while True: dist.all_gather_object(found, {'rank': rank, 'text': 'x' * 1000})"
)
_TRAIN = (
    "print('in', flush=True)\n"
    "while True:\n    model.zero_grad()\n"
    "    model(torch.full((8, 4), float(rank))).sum().backward()"
)
_MESSAGES = (
    "t = torch.ones(1000)\nprint('in', flush=True)\nwhile True:\n"
    "    if rank == 0: dist.send(t, 1)\n"
    "    elif rank == 1: dist.recv(t, 0)\n"
    "    else: time.sleep(0.01)"
)
_ANY_SOURCE = "print('in', flush=True)\nif rank: time.sleep(100)\nelse: dist.recv(torch.ones(3))"
_STORE = "print('in', flush=True)\ndist.distributed_c10d._get_default_store().get('never')"
_GROUPS = (
    "print('in', flush=True)\nwhile True:\n"
    "    g = dist.new_group(); dist.barrier(group=g); dist.destroy_process_group(g)"
)
_AWAIT = "import asyncio\nprint('in', flush=True)\nawait asyncio.sleep(100)"
_SUBPROCESS = "import subprocess\nprint('in', flush=True)\nsubprocess.run(['sleep', '100'])"
_FINALLY = (
    "print('in', flush=True)\ntry: time.sleep(100)\n"
    "finally:\n    for _ in range(20): time.sleep(0.01)"
)
_HANDLED = (
    "print('in', flush=True)\nwhile True:\n    try: dist.all_reduce(torch.ones(10))\n"
    "    except ValueError: pass"
)
_BRIEF = "print('in', flush=True)\ntime.sleep(0.3)\nx = rank"
_EMPTY = "x = rank"
_MISSING = "print('in', flush=True)\nif rank: dist.all_reduce(torch.ones(3))"
_KEEPS = "t = torch.full((300_000,), float(rank))\nprint('in', flush=True)\n"
_KEPT = "assert t.eq(rank).all(), (t.unique(), [(t != rank).sum()])"
_SUB_GROUPS = (
    "print('in', flush=True)\nfor _ in range(100_000):\n"
    "    dist.all_reduce(torch.ones(10), group=everyone)\n"
    "    if rank < 2: dist.all_reduce(torch.ones(10), group=low)"
)

KINDS = (
    # The stop button.
    Fault("press in the first milliseconds", _SLEEP, press(0, 0.005, "begin")),
    Fault("two presses in the first milliseconds", _SLEEP, press(0, 0.005, "begin", 2)),
    Fault("press in the first tenths", _SLEEP, press(0, 0.1, "begin")),
    Fault("press in an empty cell", _EMPTY, press(0, 0.02, "begin")),
    Fault("two presses in an empty cell", _EMPTY, press(0, 0.02, "begin", 2)),
    Fault("press at the end", _BRIEF, press(0.28, 0.32)),
    Fault("two presses at the end", _BRIEF, press(0.27, 0.31, "in", 2)),
    Fault("press in a sleep", _SLEEP, press(0, 0.3)),
    Fault("press in a loop", _LOOP, press(0, 0.3)),
    Fault("presses in a loop", _LOOP, press(0, 0.3, "in", 5)),
    Fault("press in a flood", _FLOOD, press(0, 0.5)),
    Fault("two presses in a flood", _FLOOD, press(0, 0.5, "in", 2)),
    Fault("press in a flood of displays", _DISPLAYS, press(0, 0.5)),
    Fault("press in C code", _C_CODE, press(0, 0.5)),
    Fault("two presses in C code", _C_CODE, press(0, 0.5, "in", 2)),
    Fault("press while the GIL is held", _GIL, press(0, 0.5)),
    Fault("two presses while the GIL is held", _GIL, press(0, 0.5, "in", 2)),
    Fault("press in a lock", _LOCK, press(0, 0.3)),
    Fault("two presses in a lock", _LOCK, press(0, 0.3, "in", 2)),
    Fault("press in object collectives", _OBJECTS, press(0, 0.3)),
    Fault("two presses in object collectives", _OBJECTS, press(0, 0.3, "in", 2)),
    Fault("press in training", _TRAIN, press(0, 0.3)),
    Fault("two presses in training", _TRAIN, press(0, 0.3, "in", 2)),
    Fault("press in collectives", _REDUCE, press(0, 0.3)),
    Fault("presses in collectives", _REDUCE, press(0, 0.3, "in", 6)),
    Fault("press in large collectives", _LARGE, press(0, 0.3)),
    Fault("two presses in large collectives", _LARGE, press(0, 0.3, "in", 2)),
    Fault("press in sub-groups", _SUB_GROUPS, press(0, 0.3)),
    Fault("press in messages", _MESSAGES, press(0, 0.3)),
    Fault("press in a receive from any source", _ANY_SOURCE, press(0, 0.3)),
    Fault("press in a wait for the store", _STORE, press(0, 0.25)),
    Fault("press while groups are made", _GROUPS, press(0, 0.3)),
    Fault("two presses while groups are made", _GROUPS, press(0, 0.3, "in", 2)),
    Fault("press in await", _AWAIT, press(0, 0.3)),
    Fault("press in a subprocess", _SUBPROCESS, press(0, 0.3)),
    Fault("press in code with finally", _FINALLY, press(0, 0.3)),
    Fault("press in code with handlers", _HANDLED, press(0, 0.3)),
    Fault("press in the recovery", _MISSING, press(0.1, 0.8)),
    Fault("two presses in the recovery", _MISSING, press(0.1, 0.8, "in", 2)),
    # Deaths.
    Fault("kill one in collectives", _REDUCE, kill(0, 0.3), exits=True),
    Fault("kill one in large collectives", _LARGE, kill(0, 0.3), exits=True),
    Fault("kill one in training", _TRAIN, kill(0, 0.3), exits=True),
    Fault("kill one in a flood", _FLOOD, both(kill(0, 0.3), press(0.5, 1, "event")), exits=True),
    Fault("kill one in object collectives", _OBJECTS, kill(0, 0.3), exits=True),
    Fault("kill all at once", _REDUCE, kill_all(0, 0.3, 0.0), exits=True),
    Fault("kill all one after another", _REDUCE, kill_all(0, 0.2, 0.5), exits=True),
    Fault("kill all between cells", "", kill_all(0, 0.1, 0.0, "begin"), exits=True),
    Fault("kill all between cells, in turn", "", kill_all(0, 0.1, 0.6, "begin"), exits=True),
    Fault("kill one between cells", "", kill(0, 0.1, "begin"), exits=True),
    Fault("kill one just before a cell", _BRIEF, kill(0, 0.003, "begin"), exits=True),
    Fault("kill one at the end", _BRIEF, kill(0.27, 0.32), exits=True),
    Fault("kill one in a push", "", kill(0, 0.05, "begin"), use="push", exits=True),
    Fault("kill one in a pull", "", kill(0, 0.05, "begin"), use="pull", exits=True),
    Fault("kill in the recovery", _MISSING, kill(0.1, 0.9), exits=True),
    Fault(
        "kill two, the second in the recovery",
        _REDUCE,
        both(kill(0, 0.1), kill(0.1, 0.6, "event")),
        exits=True,
    ),
    Fault(
        "kill again and again",  # a recovery is begun three times at most
        _REDUCE,
        both(kill(0, 0.1), *[kill(0, 1, "event")] * 2),
        exits=True,
    ),
    Fault("kill and press", _REDUCE, both(kill(0, 0.2), press(0, 0.3, "event")), exits=True),
    Fault(
        "kill and two presses", _REDUCE, both(kill(0, 0.2), press(0, 0.3, "event", 2)), exits=True
    ),
    Fault("press and kill", _REDUCE, both(press(0, 0.2), kill(0, 0.3, "event")), exits=True),
    Fault(
        "a rank exits",
        "print('in')\nif rank == step % world_size: os._exit(3)\ndist.barrier()",
        exits=True,
    ),
    Fault(
        "a rank crashes",
        "import ctypes\nif rank == step % world_size: ctypes.string_at(0)\ndist.barrier()",
        exits=True,
    ),
    Fault("restart one", "", restart(lambda n: [(1,)]), exits=True),
    Fault(
        "restart some, then the others",
        "",
        restart(lambda n: [(0,), tuple(range(1, n))]),
        exits=True,
    ),
    Fault("restart some in a cell", _REDUCE, restart(lambda n: [(1, 2)], "in"), exits=True),
    # Stopped ranks.
    Fault(
        "a rank is stopped for a while",
        "print('in', flush=True)\n"
        "for _ in range(200): dist.all_reduce(torch.ones(1000)); time.sleep(0.002)",
        stop_and_continue(1.0),
    ),
    Fault("two presses while a rank is stopped", _REDUCE, stop_and_continue(2.5, 2), stays=True),
    # Disagreements.
    Fault("missing collective", _MISSING),
    Fault("missing in a sub-group", "if rank == 0: dist.all_reduce(torch.ones(3), group=low)"),
    Fault(
        "crossed groups",
        "a, b = (low, everyone) if rank == 0 else (everyone, low)\n"
        "if rank < 2: dist.all_reduce(torch.ones(3), group=a); "
        "dist.all_reduce(torch.ones(3), group=b)",
    ),
    Fault("receive without send", "if rank == 1: dist.recv(torch.ones(3), 0)"),
    Fault("receive from any source", "if rank == 1: dist.recv(torch.ones(3))"),
    Fault(
        "key that nobody sets",
        "if rank == 0: dist.distributed_c10d._get_default_store().get('never')\ndist.barrier()",
    ),
    Fault("group that a member does not make", "if rank != 1: dist.new_group()"),
    Fault(
        "backward on some ranks only",
        "model.zero_grad()\nif rank: model(torch.ones(2, 4)).sum().backward()",
    ),
    Fault("other shapes", _KEEPS + "dist.all_reduce(t[:1000 * (rank + 1)])", then=_KEPT),
    Fault(
        "other operations",
        _KEEPS + "if rank == 0: dist.broadcast(t, 0)\nelse: dist.all_reduce(t)",
        then=_KEPT,
    ),
    Fault(
        "other operations after others",
        _KEEPS + "dist.barrier()\nif rank == 2: dist.barrier()\ndist.all_reduce(t)",
        then=_KEPT,
    ),
    Fault(
        "other dtypes",
        "dist.all_reduce(torch.ones(100, dtype=torch.float64 if rank else torch.float32))",
    ),
    Fault("other roots", "dist.broadcast(torch.ones(1000), rank % 2)"),
    Fault(
        "other shapes on the way",
        _KEEPS + "for k in range(50):\n"
        "    dist.all_reduce(torch.ones(100 if (k, rank) != (20, 1) else 50))",
        then=_KEPT,
    ),
    Fault("large sum that a rank misses", _KEEPS + "if rank: dist.all_reduce(t)", then=_KEPT),
    # Errors and timeouts.
    Fault("error on one rank", "if rank == step % 3: 1 / 0\ndist.all_reduce(torch.ones(3))"),
    Fault("error on all ranks", "dist.all_reduce(torch.ones(3))\n1 / 0"),
    Fault(
        "error with an open operation",
        "w = dist.all_reduce(torch.ones(99_999), async_op=True)\nif rank == 1: 1 / 0\nw.wait()",
    ),
    Fault(
        "error in a backward",
        "class Bad(torch.autograd.Function):\n"
        "    @staticmethod\n    def forward(ctx, x): return x.clone()\n"
        "    @staticmethod\n    def backward(ctx, g): raise ValueError(rank)\n"
        "Bad.apply(model(torch.ones(2, 4))).sum().backward()",
    ),
    Fault("sys.exit", "import sys\nsys.exit(rank)"),
    Fault("timeout in a sleep", _SLEEP, timeout_s=0.3),
    Fault("timeout in collectives", _REDUCE, timeout_s=0.3),
    Fault("timeout in training", _TRAIN, timeout_s=0.3),
    Fault(
        "monitored barrier",
        "from datetime import timedelta\n"
        "if rank: dist.monitored_barrier(timeout=timedelta(seconds=0.5))",
    ),
)
