"""The data that the loaders of one rank have read during a cell, as facts; see docs/sanitizer.md.

Runs in: every process. Pure. `nbddp.controller.diagnosis` compares those of all ranks.
"""

from nbddp.wire.flight_recorder.schema import RankSpan, Site, _Part


class SamplerFacts(_Part, frozen=True):
    """The sampler of a loader."""

    name: str = ""  #: its class
    is_torch: bool = False  #: a class of torch: it goes once over all samples, or is distributed
    draws_again: bool = False  #: a sample may come twice, or never: on purpose
    is_distributed: bool = False  #: a `DistributedSampler`; else what follows is not known
    site: Site = Site()  #: the line that made it in this cell; without a line: an earlier cell
    replicas: int = 0  #: number of shares
    rank: int = 0  #: number of this share
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = False


class ReadEpoch(_Part, frozen=True):
    """One pass over a loader."""

    site: Site  #: the line of the loop
    batches: int  #: that the code has got
    samples: int  #: in them; 0: not known
    is_complete: bool  #: the loop came to the end of the data
    order: bytes  #: digest of the indices in their order; empty: not known
    number: int  #: of `DistributedSampler.set_epoch`, when the loop began
    trains: bool  #: a backward pass or a step of an optimizer ran in the loop
    joins: bool  #: inside ``with model.join()``, where numbers of batches may differ
    indices: bytes = b""  #: a bit for each sample of the dataset that was read; empty: not known
    base_indices: bytes = b""  #: the same for the dataset of a `Subset`
    combines: bool = True  #: an operation in the loop has brought values of ranks together
    #: The members of the groups that have combined what was trained in the loop, in it or after it:
    #: gradients, or weights.
    groups: tuple[tuple[RankSpan, ...], ...] = ()
    has_ddp: bool = False  #: `DistributedDataParallel` averaged gradients in the loop
    #: Calls of `set_epoch` of its sampler in this cell, when the loop began; -1: not known.
    epochs_set: int = 0
    is_beside: bool = False  #: it began before the pass before it had a batch, as in ``zip``
    #: The models that optimizers have stepped in the loop, as numbers of this rank and cell.
    models: tuple[int, ...] = ()


class LoaderReads(_Part, frozen=True):
    """The passes over one `DataLoader`, from the first of the cell on."""

    site: Site  #: the line that made the loader in this cell; without a line: an earlier cell
    dataset: str  #: its class
    length: int  #: number of its samples; -1: not known
    is_iterable: bool  #: an `IterableDataset`: it has no indices
    contents: bytes  #: digest of what the dataset holds; empty: nothing that can be compared
    sampler: SamplerFacts
    batch_size: int  #: 0: not known
    drop_last: bool
    base_contents: bytes = b""  #: of the dataset of a `Subset`
    base_length: int = 0
    base_dataset: str = ""  #: its class
    epochs: tuple[ReadEpoch, ...] = ()
