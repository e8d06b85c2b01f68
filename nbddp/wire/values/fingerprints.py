"""What ranks tell of their values, so that those of several ranks can be compared.

Fingerprints and a few words, never the values themselves. Pickled on their way, so that this module
must be one that the notebook's process can import.

Runs in: ranks make these, the notebook's process compares them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Leaf:
    """A tensor, or a value that has no parts, somewhere in a value."""

    path: str  #: from the whole value: ``.0.weight``, ``['lr']``
    what: str  #: ``float32 (3, 4)``, ``int``
    digest: str  #: equal where the values are; empty: it cannot be told
    value: str = ""  #: in short; empty for tensors
    size: str = ""  #: of one that is too long to be told: ``str of 2,000 characters``
    is_tensor: bool = False
    nbytes: int = 0
    shape: tuple[int, ...] = ()  #: of what lies on this rank
    dtype: str = ""  #: of a value that is too long: ``text``, whose elements are characters
    part: str = ""  #: which shard; shards that are not the same are not compared
    sharding: str = ""  #: ``Shard(0) on mesh dp=4``


@dataclass(frozen=True)
class Tree:
    """All leaves of one value on one rank."""

    leaves: tuple[Leaf, ...] = ()
    gradients: tuple[Leaf, ...] = ()  #: of the parameters among them; their paths end in ``.grad``
    kinds: Mapping[str, str] = field(default_factory=dict)  #: types of what has parts, by path
    modes: Mapping[str, bool] = field(default_factory=dict)  #: modules by path: do they train?
    is_cut: bool = False  #: there were too many leaves
    error: str = ""  #: why there is no value


@dataclass(frozen=True)
class Blocks:
    """Fingerprints of the pieces of one tensor."""

    digests: tuple[bytes, ...]
    norm: float | None  #: None: not a number that has one


@dataclass(frozen=True)
class Variable:
    """One name on one rank, as ``%ddp vars`` shows it."""

    name: str
    type: str = ""
    shape: str = ""
    dtype: str = ""
    device: str = ""
    value: str = ""
    sharding: str = ""
    digest: str = ""  #: equal where the values are; empty: it cannot be told


@dataclass(frozen=True)
class Variables:
    """What a rank has of the names that were asked for."""

    found: tuple[Variable, ...] = ()
    left_out: int = 0  #: of the names that were too many
