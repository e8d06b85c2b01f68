"""What is asked of ranks about their values, and what they tell, so that these can be compared.

Fingerprints, a few words, and a few blocks of bytes of what differs; never the values themselves.
These travel in `DescribeValue` and `ValueDescribed`: they are typed, and nothing is unpickled.

    DescribeValue(question)                                  ValueDescribed(answer)
      TreeOf("model")                                          Tree of Leaf
      BlocksOf({".0.weight": (0, 2)})                          TensorBlocks of Blocks
      ContentsOf({".0.weight": BlockNumbers((0, 2), (5,))})    BlockContents
      VariablesOf(("model", "loss"))                           Variables of Variable

Runs in: the notebook's process asks and compares, ranks answer. Pure.
"""

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from nbddp.wire.message_types import Rank


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Base of what is inside of questions and answers."""


class _Tagged(_Part, frozen=True, tag=True):
    """Base of questions and answers."""


# --- questions -----------------------------------------------------------------------------------


class TreeOf(_Tagged, frozen=True):
    """All leaves of a value. Answered by `Tree`; the rank keeps the tensors for what follows."""

    expression: str  #: ``rng``, if there is no such name: all generators of random numbers


class BlocksOf(_Tagged, frozen=True):
    """Fingerprints of the blocks of tensors, or long texts, of the last `Tree`: `TensorBlocks`."""

    ranks_by_path: dict[str, tuple[Rank, ...]]  #: others have nothing to tell


class BlockNumbers(_Part, frozen=True):
    """Some blocks of one tensor, on some ranks."""

    ranks: tuple[Rank, ...]
    numbers: tuple[int, ...]


class ContentsOf(_Tagged, frozen=True):
    """The bytes of some blocks. Answered by `BlockContents` with frames, after `TensorBlocks`."""

    blocks_by_path: dict[str, BlockNumbers]


class VariablesOf(_Tagged, frozen=True):
    """Names of the user's, each in a few words. Answered by `Variables`."""

    names: tuple[str, ...]  #: empty: all that hold data


#: Bytes of blocks by path and number.
BytesByPath: TypeAlias = dict[str, dict[int, bytes]]

ValueQuestion: TypeAlias = TreeOf | BlocksOf | ContentsOf | VariablesOf


# --- answers -------------------------------------------------------------------------------------


class Leaf(_Part, frozen=True):
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


class Tree(_Tagged, frozen=True):
    """All leaves of one value on one rank."""

    leaves: tuple[Leaf, ...] = ()
    gradients: tuple[Leaf, ...] = ()  #: of the parameters among them; their paths end in ``.grad``
    kinds: dict[str, str] = {}  #: types of what has parts, by path
    modes: dict[str, bool] = {}  #: modules by path: do they train?
    is_cut: bool = False  #: there were too many leaves
    error: str = ""  #: why there is no value


class Blocks(_Part, frozen=True):
    """Fingerprints of the pieces of one tensor."""

    digests: tuple[bytes, ...]
    norm: float | None  #: None: not a number that has one


class TensorBlocks(_Tagged, frozen=True):
    """Fingerprints of the pieces of some tensors."""

    by_path: dict[str, Blocks]


class BlockContents(_Tagged, frozen=True):
    """Some pieces of some tensors; their bytes are the frames beside the message, in this order."""

    numbers_by_path: dict[str, tuple[int, ...]]

    def with_bytes(self, frames: Sequence[bytes]) -> BytesByPath | None:
        """The bytes of each piece; None: these frames belong to something else."""
        if len(frames) != sum(map(len, self.numbers_by_path.values())):
            return None
        pieces = iter(frames)
        return {
            path: {number: next(pieces) for number in numbers}
            for path, numbers in self.numbers_by_path.items()
        }


class Variable(_Part, frozen=True):
    """One name on one rank, as ``%ddp vars`` shows it."""

    name: str
    type: str = ""
    shape: str = ""
    dtype: str = ""
    device: str = ""
    value: str = ""
    sharding: str = ""
    digest: str = ""  #: equal where the values are; empty: it cannot be told


class Variables(_Tagged, frozen=True):
    """What a rank has of the names that were asked for."""

    found: tuple[Variable, ...] = ()
    left_out: int = 0  #: of the names that were too many


ValueAnswer: TypeAlias = Tree | TensorBlocks | BlockContents | Variables
