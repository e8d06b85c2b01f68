"""Operations of every kind whose tensors must be released with them: a cell for each.

A kind is a function that passes its tensors to `seen` and keeps none of them. Nothing here may need
the garbage collector: it is off, and a tensor that is alive afterwards is referenced.
"""

PRELUDE = '''
import gc, time, weakref
from datetime import timedelta
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel as DDP

refs, kinds = [], {}
world, peer = dist.group.WORLD, 1 - rank
ops = {"async_op": True}

def seen(*tensors):
    refs.extend(map(weakref.ref, tensors))
    return tensors[0] if len(tensors) == 1 else list(tensors)

def new(size=4):
    return seen(torch.ones(size))

def pair():
    return seen(torch.ones(4), torch.ones(4))

def kind(function):
    kinds[function.__name__] = function

def left(function, times):
    """How many tensors of so many operations are alive in the end."""
    refs.clear()
    gc.disable()
    try:
        for _ in range(times):
            function()
            if len(refs) > 200:
                refs[:] = [ref for ref in refs if ref() is not None]
        dist.barrier()
        until = time.monotonic() + 5.0  # threads of Gloo let go of an operation after its end
        while (alive := sum(ref() is not None for ref in refs)) and time.monotonic() < until:
            time.sleep(0.005)
    finally:
        gc.enable()
    dist.barrier()
    return alive

#: A look from outside would let go of what has ended.
recorder = getattr(world, "recorder", None)
if recorder is not None:
    recorder.sweep = lambda: None

# --- collectives: name, call ------------------------------------------------------------------
calls = {
    "all_reduce": lambda **how: dist.all_reduce(new(), **how),
    "broadcast": lambda **how: dist.broadcast(new(), 0, **how),
    "reduce": lambda **how: dist.reduce(new(), 0, **how),
    "all_gather": lambda **how: dist.all_gather(pair(), new(), **how),
    "all_gather_into_tensor": lambda **how: dist.all_gather_into_tensor(new(8), new(), **how),
    "reduce_scatter": lambda **how: dist.reduce_scatter(new(), pair(), **how),
    "reduce_scatter_tensor": lambda **how: dist.reduce_scatter_tensor(new(), new(8), **how),
    "all_to_all": lambda **how: dist.all_to_all(pair(), pair(), **how),
    "all_to_all_single": lambda **how: dist.all_to_all_single(new(), new(), **how),
    "gather": lambda **how: dist.gather(new(), None if rank else pair(), **how),
    "scatter": lambda **how: dist.scatter(new(), None if rank else pair(), **how),
    "barrier": lambda **how: dist.barrier(**how),
    "all_reduce_coalesced": lambda **how: dist.all_reduce_coalesced(pair(), **how),
    "all_gather_coalesced": lambda **how: dist.all_gather_coalesced(
        [pair(), pair()], pair(), **how),
}
if torch.__version__ < (2, 13):
    del calls["all_to_all"]  # Gloo has it since then
for name, call in calls.items():
    kinds[name] = call
    kinds[f"{name}, waited"] = lambda call=call: call(**ops).wait()
    kinds[f"{name}, let go"] = lambda call=call: call(**ops) and None

@kind
def future_waited():
    calls["all_reduce"](**ops).get_future().wait()

@kind
def future_let_go():
    calls["all_reduce"](**ops).get_future()

@kind
def future_with_callback():
    calls["all_reduce"](**ops).get_future().then(lambda future: future.value()).wait()

@kind
def looked_at():
    work = calls["all_reduce"](**ops)
    while not work.is_completed():
        time.sleep(0)

@kind
def coalesced_by_manager():
    with _coalescing_manager(world, async_ops=True) as manager:
        dist.all_reduce(new())
        dist.all_reduce(new())
    manager.wait()

# --- messages ---------------------------------------------------------------------------------
@kind
def send_and_recv():
    for sender in (0, 1):
        dist.send(new(), peer) if rank == sender else dist.recv(new(), peer)

@kind
def isend_and_irecv():
    works = [dist.isend(new(), peer), dist.irecv(new(), peer)]
    for work in works:
        work.wait()

@kind
def isend_let_go_after_it_arrived():
    sent = dist.isend(new(), peer)
    dist.recv(new(), peer)
    dist.barrier()

@kind
def recv_from_any():
    sent = dist.isend(new(), peer)
    dist.recv(new())
    sent.wait()

@kind
def batch_isend_irecv():
    both = (dist.P2POp(dist.isend, new(), peer), dist.P2POp(dist.irecv, new(), peer))
    for work in dist.batch_isend_irecv(list(both)):
        work.wait()

# --- functional collectives, DDP, a pipeline --------------------------------------------------
@kind
def functional_all_reduce():
    seen(functional.all_reduce(new(), "sum", world).wait())

@kind
def functional_not_waited():
    seen(functional.all_reduce(new(), "sum", world))

@kind
def functional_all_gather():
    seen(functional.all_gather_tensor(new(), 0, world)).sum().item()

model = DDP(torch.nn.Linear(4, 4))

@kind
def ddp():
    seen(model(new())).sum().backward()
    seen(*(parameter.grad for parameter in model.parameters()))
    model.zero_grad()

# --- calls that fail --------------------------------------------------------------------------
def fails(call):
    try:
        call()
    except (RuntimeError, ValueError):
        return
    raise AssertionError("it has not failed")

@kind
def refused():
    fails(lambda: dist.all_gather([new()], new(5)))

@kind
def refused_async():
    fails(lambda: dist.all_gather([new()], new(5), async_op=True))

@kind
def refused_by_gloo():
    fails(lambda: dist.reduce_scatter_tensor(new(5), new(8)))
'''

#: Hundreds of tensors in a step; the schedule itself goes on living.
PIPELINE = """
stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))
schedule = Schedule1F1B(stage, 8, loss_fn=lambda out, target: seen((out - target).square().mean()))
def step():
    if rank == 0:
        schedule.step(seen(torch.ones(16, 4)))
    else:
        schedule.step(target=seen(torch.zeros(16, 4)), losses=[])

def tensors_in_cycles():
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for _ in range(3):
            step()
        gc.collect()
        return sum(isinstance(found, torch.Tensor) for found in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
"""
