"""Sharded models whose steps are interrupted at any place. Runs in: ranks; see test_torn_steps."""

#: ``make()`` is defined by a kind; nothing here changes a parameter.
PRELUDE = '''\
import sys, warnings
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard,
)
warnings.simplefilter("ignore")

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 6)

    def forward(self, x):
        return x + self.down(self.up(x).tanh())

def net(after=lambda block: block):
    torch.manual_seed(1)
    return nn.Sequential(*(after(Block()) for _ in range(3)), nn.Linear(6, 5))

def two(**options):
    """FSDP2 on each block and on the root."""
    model = net()
    for block in model[:3]:
        fully_shard(block, **options)
    return fully_shard(model, **options)

def batch(number):
    return torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * number + rank))

def once(model, number=1):
    loss = model(batch(number)).square().mean()
    loss.backward()
    return loss.item()

def step(model):
    return once(model)

def accumulated(model):
    model.set_requires_gradient_sync(False)
    once(model, 2)
    model.set_requires_gradient_sync(True)
    return once(model)

def result(model):
    """A whole step: what a model that was never left gives, too."""
    model.zero_grad()
    found = [torch.tensor(step(model))]
    for parameter in model.parameters():
        for tensor in (parameter, parameter.grad):
            tensor = getattr(tensor, "_local_tensor", tensor)
            found.append(None if tensor is None else tensor.detach().clone())
    return found, [type(each).__name__ for each in model.parameters()]

def check(model):
    (found, kinds), (right, right_kinds) = result(model), expected
    same = all(a is b or (a is not None and b is not None and torch.equal(a, b))
               for a, b in zip(found, right, strict=True))
    print("equal" if same and kinds == right_kinds else "WRONG")

class Left(Exception):
    """The step is left here."""

class Lines:
    """Counts the lines that FSDP runs, and leaves at one of them."""

    def __init__(self, last=-1):
        self.left, self.counted = last, 0

    def __enter__(self):
        sys.settrace(self.calls)
        return self

    def __exit__(self, *_):
        sys.settrace(None)

    def calls(self, frame, event, value):
        path = frame.f_code.co_filename
        if "/distributed/fsdp/" in path and not path.endswith("_fully_shard.py"):
            return self.lines
        return None

    def lines(self, frame, event, value):
        if event == "line":
            self.counted += 1
            if self.counted == self.left:
                raise Left(f"{frame.f_code.co_name}:{frame.f_lineno}")
        return self.lines

def leave(model, line):
    model.zero_grad()
    with Lines(line):
        step(model)
'''

_DEFAULT = "def make():\n    return {}\n"
_ONE = "FullyShardedDataParallel({}, device_id=torch.device('cpu'){})"
_NESTED = "net(lambda block: FullyShardedDataParallel(block, device_id=torch.device('cpu'){0}))"

#: How models are sharded: by name, code that defines ``make``.
KINDS = {
    "fsdp2": _DEFAULT.format("two()"),
    "fsdp2, plain root": _DEFAULT.format("fully_shard(net())"),
    "fsdp2, not resharded": _DEFAULT.format("two(reshard_after_forward=False)"),
    "fsdp2, mixed precision": _DEFAULT.format(
        "two(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))"
    ),
    "fsdp2, accumulation": _DEFAULT.format("two()") + "step = accumulated\n",
    "fsdp2, accumulation in mixed precision": _DEFAULT.format(
        "two(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))"
    )
    + "step = accumulated\n",
    "fsdp2, modules together": """
class Chunked(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = Block(), nn.Linear(6, 6), nn.Linear(6, 5)

    def forward(self, x):
        return self.norm(self.body(x))

def make():
    torch.manual_seed(3)
    model = Chunked()
    fully_shard(model.body)
    fully_shard([model.norm, model.head])
    return fully_shard(model)

def step(model):
    hidden = model(batch(1))
    found, total = hidden.detach().requires_grad_(), 0
    for chunk in found.chunk(2):
        loss = model.head(chunk).square().mean()
        loss.backward()
        total += loss.item()
    hidden.backward(found.grad)
    return total
""",
    "fsdp1": _DEFAULT.format(_ONE.format("net()", "")),
    "fsdp1, nested": _DEFAULT.format(_ONE.format(_NESTED.format(""), "")),
    "fsdp1, original parameters": _DEFAULT.format(
        _ONE.format(_NESTED.format(", use_orig_params=True"), ", use_orig_params=True")
    ),
    "fsdp1, not resharded": _DEFAULT.format(
        _ONE.format(
            _NESTED.format(
                ", use_orig_params=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP"
            ),
            ", use_orig_params=True, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
        )
    ),
}
