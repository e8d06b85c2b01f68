"""Cells that read data on ranks, for ``%%ddp --sanitize data``: shared wrongly, and rightly.

Each runs on two ranks. What is there before is in `DATA_PRELUDE`.
"""

from tests.cases.sanitized import WrongCell, replaced

DATA_PRELUDE = """\
import torch.utils.data
from torch.utils.data import *
data = TensorDataset(torch.arange(10.0).reshape(10, 1))
weight = torch.ones(1, requires_grad=True)
def fit(batch):
    (batch[0] * weight).sum().backward()
    dist.all_reduce(weight.grad)
class Everyone(Sampler):
    def __iter__(self):
        return iter(range(10))
    def __len__(self):
        return 10
class Share(Sampler):
    def __init__(self, count=10):
        self.indices = range(rank, count, world_size)
    def __iter__(self):
        return iter(self.indices)
    def __len__(self):
        return len(self.indices)
class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(rank, 8, world_size))
class Squares(Dataset):
    def __len__(self):
        return 10
    def __getitem__(self, index):
        return torch.tensor([float(index) ** 2]),
"""


def data_cell(
    name: str, code: str, kind: str, words: tuple[str, ...], lines: tuple[int, ...],
    *fixes: tuple[str, str], culprits: str = "0-1", proven: bool = True,
) -> WrongCell:  # fmt: skip
    fixed = replaced(code, *fixes)
    return WrongCell(name, code, fixed, kind, words, lines, culprits=culprits, proven=proven)


_PLAIN = "loader = DataLoader(data, batch_size=2)\nfor batch in loader:\n    fit(batch)\n"
_SAMPLED = """\
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=2, sampler=sampler)
for batch in loader:
    fit(batch)
"""
EPOCHS = """\
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=2, sampler=sampler)
for epoch in range(3):
    for batch in loader:
        fit(batch)
"""
#: Its workers end with the loader.
_STAYING = EPOCHS.replace(
    "sampler=sampler", "sampler=sampler, num_workers=1, persistent_workers=True"
)
_STAYING += "del loader, sampler\n"
SET_EPOCH = ("    for batch", "    sampler.set_epoch(epoch)\n    for batch")

WRONG_DATA = [
    data_cell(
        "no sampler",
        _PLAIN,
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of TensorDataset in one pass", "no sampler"),
        (1, 2),
        ("batch_size=2", "batch_size=2, sampler=DistributedSampler(data)"),
        proven=False,
    ),
    data_cell(
        "no sampler, and gradients that DDP averages",
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(torch.nn.Linear(1, 1))\n"
        "for batch in DataLoader(data, 5): model(batch[0]).sum().backward()\n",
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of TensorDataset in one pass", "no sampler"),
        (3,),
        ("DataLoader(data, 5)", "DataLoader(data, 5, sampler=DistributedSampler(data))"),
        proven=False,
    ),
    data_cell(
        "no sampler, and flat gradients that the code averages before each step",
        "own = torch.nn.Linear(1, 4); optimizer = torch.optim.SGD(own.parameters(), 0.1)\n"
        "for batch in DataLoader(data, 5):\n"
        "    own(batch[0]).sum().backward()\n"
        "    flat = torch.cat([one.grad.flatten() for one in own.parameters()])\n"
        "    dist.all_reduce(flat); optimizer.step()\n",
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of TensorDataset in one pass", "no sampler"),
        (2,),
        ("DataLoader(data, 5)", "DataLoader(data, 5, sampler=DistributedSampler(data))"),
        proven=False,
    ),
    data_cell(
        "no sampler, and weights that are averaged after the loop",
        "own = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(own.parameters(), 0.1)\n"
        "for batch in DataLoader(data, 5):\n"
        "    own(batch[0]).sum().backward(); optimizer.step()\n"
        "for one in own.parameters(): dist.all_reduce(one.data)\n",
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of TensorDataset", "no sampler"),
        (2,),
        ("DataLoader(data, 5)", "DataLoader(data, 5, sampler=DistributedSampler(data))"),
        proven=False,
    ),
    data_cell(
        "no sampler, and a loader that is made in each epoch",
        "for epoch in range(2):\n    for batch in DataLoader(data, 5):\n        fit(batch)\n",
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of TensorDataset", "no sampler"),
        (2,),
        ("DataLoader(data, 5)", "DataLoader(data, 5, sampler=Share())"),
        proven=False,
    ),
    data_cell(
        "no sampler, with workers",
        "loader = DataLoader(data, 2, shuffle=True, num_workers=1)\n"
        "for n, batch in enumerate(loader):\n    fit(batch)\n",
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of TensorDataset", "no sampler"),
        (1, 2),
        ("shuffle=True", "sampler=DistributedSampler(data)"),
        proven=False,
    ),
    data_cell(
        "rank 0 in all samplers",
        _SAMPLED.replace("(data)", "(data, num_replicas=world_size, rank=0)"),
        "samples-twice",
        ("Ranks 0-1 read 5 of the 10 samples", "same share (rank=0 on ranks 0-1)"),
        (1, 2, 3),
        ("rank=0", "rank=rank"),
    ),
    data_cell(
        "seeds that differ",
        _SAMPLED.replace("(data)", "(data, seed=rank)"),
        "samples-twice",
        ("Ranks 0-1 read", "samples", "seeds (seed=0 on rank 0, seed=1 on rank 1)"),
        (1, 2, 3),
        ("seed=rank", "seed=1"),
    ),
    data_cell(
        "epochs that differ",
        _SAMPLED.replace("for batch", "sampler.set_epoch(rank)\nfor batch"),
        "samples-twice",
        ("Ranks 0-1 read", "different epochs (0 on rank 0, 1 on rank 1)"),
        (1, 2, 4),
        ("set_epoch(rank)", "set_epoch(1)"),
    ),
    data_cell(
        "own sampler that shares nothing",
        _PLAIN.replace("batch_size=2", "batch_size=2, sampler=Everyone()"),
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples", "Everyone gives ranks the same samples"),
        (1, 2),
        ("Everyone()", "Share()"),
        proven=False,
    ),
    data_cell(
        "subsets that overlap",
        "part = Subset(data, range(4 * rank, 4 * rank + 6))\n" + _PLAIN.replace("data", "part"),
        "samples-twice",
        (
            "Ranks 0-1 read 2 of the 10 samples of TensorDataset more than once (indices 4, 5)",
            "overlap",
        ),
        (2, 3),
        ("range(4 * rank, 4 * rank + 6)", "range(5 * rank, 5 * rank + 5)"),
        proven=False,
    ),
    data_cell(
        "more shares than ranks",
        _SAMPLED.replace("(data)", "(data, 4, rank, shuffle=False)"),
        "samples-unread",
        ("No rank read 4 of the 10 samples of TensorDataset (indices 2, 3, 6, 7)",),
        (1, 2, 3),
        ("4, rank, ", ""),
    ),
    data_cell(
        "set_epoch forgotten",
        EPOCHS,
        "same-order",
        ("Ranks 0-1 read TensorDataset in the same order in passes 1 and 2", "set_epoch"),
        (1, 2, 4),
        SET_EPOCH,
    ),
    data_cell(
        "set_epoch forgotten, with workers that stay",
        _STAYING,
        "same-order",
        ("in the same order in passes 1 and 2",),
        (1, 2, 4),
        SET_EPOCH,
    ),
    data_cell(
        "different numbers of batches",
        "part = Subset(data, range(rank, 9, 2))\nloader = DataLoader(part, 1)\n"
        "for n, batch in enumerate(loader):\n"
        "    (batch[0] * weight).sum().backward()\n    if n < 4: dist.all_reduce(weight.grad)\n",
        "uneven-batches",
        ("Rank 1 got 4 batches, rank 0 got 5 batches of Subset in one pass",),
        (2, 3),
        ("9, 2", "10, 2"),
        culprits="1",
        proven=False,
    ),
    data_cell(
        "dataset that shows nothing of what it holds",
        _PLAIN.replace("data,", "Squares(),"),
        "samples-twice",
        ("Ranks 0-1 each read all 10 samples of Squares", "no sampler"),
        (1, 2),
        ("batch_size=2", "batch_size=2, sampler=Share()"),
        proven=False,
    ),
]

#: Cells without a finding, and the notes below them: a word of each.
CORRECT_DATA: dict[str, tuple[str, tuple[str, ...]]] = {
    "sampler and set_epoch": (replaced(EPOCHS, SET_EPOCH), ()),
    "not shuffled": (EPOCHS.replace("(data)", "(data, shuffle=False)"), ()),
    "padding": (
        _SAMPLED.replace("sampler =", "data = TensorDataset(torch.arange(9.0)); sampler ="),
        ("gave 1 of the 9 samples of TensorDataset twice",),
    ),
    "drop_last of the sampler": (
        "data = TensorDataset(torch.arange(9.0))\n"
        + _SAMPLED.replace("(data)", "(data, drop_last=True)"),
        ("no rank read 1 of the 9 samples",),
    ),
    "drop_last of the loader": (
        _SAMPLED.replace("sampler=sampler", "sampler=sampler, drop_last=True"),
        ("no rank read 2 of the 10 samples",),
    ),
    "own batch sampler": (
        "batches = BatchSampler(Share(), 2, False)\n"
        "for batch in DataLoader(data, batch_sampler=batches): fit(batch)\n",
        (),
    ),
    "distributed sampler in a batch sampler": (
        "batches = BatchSampler(DistributedSampler(data), 2, False)\n"
        "for batch in DataLoader(data, batch_sampler=batches): fit(batch)\n",
        (),
    ),
    "stream with shares of its own": (
        "for batch in DataLoader(Stream(), 2): fit([batch.float()])\n",
        (),
    ),
    "workers": (_SAMPLED.replace("sampler=sampler", "sampler=sampler, num_workers=2"), ()),
    "workers that stay": (
        replaced(_STAYING, SET_EPOCH),
        (),
    ),
    "left early by all ranks": (
        "for n, batch in enumerate(DataLoader(data, 2, sampler=DistributedSampler(data))):\n"
        "    fit(batch)\n    if n == 1: break\n",
        (),
    ),
    "two loaders over one dataset": (
        "samplers = [DistributedSampler(data, seed=s) for s in (1, 2)]\n"
        "loaders = [DataLoader(data, 1, sampler=sampler) for sampler in samplers]\n"
        "for pair in zip(*loaders):\n    for batch in pair: fit(batch)\n",
        (),
    ),
    "validation on all ranks": (
        _SAMPLED + "with torch.no_grad():\n    for batch in DataLoader(data, 5):\n"
        "        total = batch[0].sum()\n",
        ("ranks 0-1 read 10 of the 10 samples of TensorDataset each; nothing was trained",),
    ),
    "model of its own on each rank": (
        "own = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(own.parameters(), 0.1 * rank)\n"
        "for epoch in range(2):\n    for batch in DataLoader(data, 5, shuffle=True):\n"
        "        own(batch[0]).sum().backward(); optimizer.step(); dist.barrier()\n"
        "score = own.bias.detach().sum(); dist.all_reduce(score)\n",
        ("ranks 0-1 read 10 of the 10 samples of TensorDataset each; nothing that they trained",),
    ),
    "folds of a cross-validation": (
        "own = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(own.parameters(), 0.1)\n"
        "fold = Subset(data, range(8) if rank == 0 else range(2, 10))\n"
        "for batch in DataLoader(fold, 4): own(batch[0]).sum().backward(); optimizer.step()\n",
        ("ranks 0-1 read 6 of the 10 samples of TensorDataset more than once; nothing that they",),
    ),
    "validation in each epoch": (
        replaced(EPOCHS, SET_EPOCH)
        + "    for batch in DataLoader(data, 2, sampler=DistributedSampler(data)):\n"
        "        total = batch[0].sum()\n",
        (),
    ),
    "validation on rank 0": (
        "if rank == 0:\n    for batch in DataLoader(data, 2): total = batch[0].sum()\n",
        (),
    ),
    "data of its own on each rank": (
        "mine = TensorDataset(torch.arange(10.0) + 100 * rank)\n"
        "for batch in DataLoader(mine, 2, shuffle=True): fit(batch)\n",
        (),
    ),
    "subset of its own on each rank": (
        "mine = Subset(data, range(rank, 10, world_size))\n"
        "for batch in DataLoader(mine, 2, shuffle=True): fit(batch)\n",
        (),
    ),
    "federated round: uneven data of its own on each rank": (
        "own = torch.nn.Linear(1, 1); optimizer = torch.optim.SGD(own.parameters(), 0.1)\n"
        "mine = TensorDataset(torch.arange(9.0 + rank)[:, None] + 100 * rank)\n"
        "for batch in DataLoader(mine, 3):\n"
        "    own(batch[0]).sum().backward(); optimizer.step()\n"
        "for one in own.parameters(): dist.all_reduce(one.data)\n",
        ("rank 0 got 3 batches, rank 1 got 4 batches of TensorDataset; no operation in",),
    ),
    "two models, one after another, in each epoch": (
        replaced(EPOCHS, SET_EPOCH) + "    for batch in loader:\n        fit(batch)\n",
        (),
    ),
    "pairs of samples": (
        replaced(EPOCHS, SET_EPOCH, ("for batch in loader", "for batch, _ in zip(loader, loader)")),
        (),
    ),
    "draws with replacement": (
        "sampler = WeightedRandomSampler(torch.ones(10), 10)\n"
        "for batch in DataLoader(data, 2, sampler=sampler): fit(batch)\n",
        (),
    ),
    "share of a part, from a generator": (
        "train, test = random_split(data, [8, 2], torch.Generator().manual_seed(1))\n"
        "for batch in DataLoader(train, 2, sampler=DistributedSampler(train)): fit(batch)\n",
        (),
    ),
    "one share for all ranks, as in tensor parallelism": (
        _SAMPLED.replace("(data)", "(data, num_replicas=1, rank=0)"),
        ("read the one share",),
    ),
    "uneven numbers in join": (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(torch.nn.Linear(1, 1))\npart = Subset(data, range(rank, 9, 2))\n"
        "with model.join():\n    for batch in DataLoader(part, 1):\n"
        "        model(batch[0]).sum().backward()\n",
        (),
    ),
    "no batches but samples": (
        "for value in DataLoader(data, batch_size=None, sampler=Share()): fit(value)\n",
        (),
    ),
    "sampler and loader of classes without a hash": (
        "class Mine(DistributedSampler):\n    def __eq__(self, other): return self is other\n"
        "class Loader(DataLoader):\n    def __eq__(self, other): return self is other\n"
        "for batch in Loader(data, 2, sampler=Mine(data)): fit(batch)\n",
        (),
    ),
    "keys that are no numbers": (
        "class Named(Dataset):\n    def __len__(self): return 4\n"
        "    def __getitem__(self, key): return (torch.tensor([float(ord(key))]),)\n"
        "for batch in DataLoader(Named(), 2, sampler=list('abcd')): fit(batch)\n",
        (),
    ),
    "error in a dataset that is caught": (
        "class Broken(Squares):\n    def __getitem__(self, index):\n"
        "        if index == 3: raise OSError\n        return super().__getitem__(index)\n"
        "try:\n    for batch in DataLoader(Broken(), 2, sampler=Share()): pass\n"
        "except OSError: pass\n",
        (),
    ),
    "own batch sampler that fills up its last batch": (
        "class Filled:\n    def __iter__(self): return iter([[0, 1], [4, 5], [8, 9]] if rank == 0 "
        "else [[2, 3], [6, 7], [0, 1]])\n    def __len__(self): return 3\n"
        "for batch in DataLoader(data, batch_sampler=Filled()): fit(batch)\n",
        ("Filled gave 2 of the 10 samples of TensorDataset twice",),
    ),
    "one iterator taken by hand": (
        "items = iter(DataLoader(data, 2, sampler=DistributedSampler(data)))\n"
        "fit(next(items)); fit(next(items))\n",
        (),
    ),
}
