"""Questions to ranks about their values, and the answers, which make values comparable.

Answers hold fingerprints, short texts, and a few blocks of bytes that differ; never whole values.
They travel in `DescribeValue` and `ValueDescribed`: they are typed, and nothing is unpickled.

    DescribeValue(question)                                  ValueDescribed(answer)
      TreeOf("model")                                          Tree of Leaf
      BlocksOf({".0.weight": (0, 2)})                          TensorBlocks of Blocks
      ContentsOf({".0.weight": BlockNumbers((0, 2), (5,))})    BlockContents
      VariablesOf(("model", "loss"))                           Variables of Variable
      NamesOf()                                                Names
      RandomStatesOf()                                         RandomStates

Runs in: the notebook's process asks and compares, ranks answer. Pure.
"""

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from nbddp.wire.message_types import Rank

#: Size of a block, in bytes: ranks hash and send tensors block by block.
BLOCK_BYTES = 1 << 20


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Base of the parts of questions and answers."""


class _Tagged(_Part, frozen=True, tag=True):
    """Base of questions and answers."""


# --- questions -----------------------------------------------------------------------------------


class TreeOf(_Tagged, frozen=True):
    """All leaves of a value. Answered by `Tree`; the rank keeps the tensors for later questions."""

    expression: str  #: ``rng``, if there is no such variable: all random number generators


class BlocksOf(_Tagged, frozen=True):
    """Fingerprints of the blocks of tensors, or long texts, of the last `Tree`: `TensorBlocks`."""

    ranks_by_path: dict[str, tuple[Rank, ...]]  #: other ranks have no answer for this path


class BlockNumbers(_Part, frozen=True):
    """Some blocks of one tensor, on some ranks."""

    ranks: tuple[Rank, ...]
    numbers: tuple[int, ...]


class ContentsOf(_Tagged, frozen=True):
    """The bytes of some blocks. Answered by `BlockContents` with frames, after `TensorBlocks`."""

    blocks_by_path: dict[str, BlockNumbers]


class VariablesOf(_Tagged, frozen=True):
    """The user's variables, each in a few words. Answered by `Variables`."""

    names: tuple[str, ...]  #: empty: all variables that hold data


class NamesOf(_Tagged, frozen=True):
    """The user's names, with the kinds of their values. Answered by `Names`."""


class RandomStatesOf(_Tagged, frozen=True):
    """The states of all random generators, as digests. Answered by `RandomStates`."""


#: Bytes of blocks by path and number.
BytesByPath: TypeAlias = dict[str, dict[int, bytes]]

ValueQuestion: TypeAlias = TreeOf | BlocksOf | ContentsOf | VariablesOf | NamesOf | RandomStatesOf


# --- answers -------------------------------------------------------------------------------------


class Leaf(_Part, frozen=True):
    """A tensor, or a value without parts, inside a value."""

    path: str  #: from the whole value: ``.0.weight``, ``['lr']``
    what: str  #: ``float32 (3, 4)``, ``int``
    digest: str  #: equal for equal values; empty: not known
    value: str = ""  #: a short text; empty for tensors
    size: str = ""  #: of a value too long to show: ``str of 2,000 characters``
    is_tensor: bool = False
    nbytes: int = 0
    shape: tuple[int, ...] = ()  #: of the part on this rank
    dtype: str = ""  #: of a value too long to show: ``text``, whose elements are characters
    part: str = ""  #: name of the shard; only equal shards are compared
    sharding: str = ""  #: ``Shard(0) on mesh dp=4``


class Tree(_Tagged, frozen=True):
    """All leaves of one value on one rank."""

    leaves: tuple[Leaf, ...] = ()
    gradients: tuple[Leaf, ...] = ()  #: of the parameters among them; their paths end in ``.grad``
    kinds: dict[str, str] = {}  #: types of the values that have parts, by path
    modes: dict[str, bool] = {}  #: ``training`` of modules, by path
    is_cut: bool = False  #: there were too many leaves
    error: str = ""  #: reason why there is no value


class Blocks(_Part, frozen=True):
    """Fingerprints of the blocks of one tensor."""

    digests: tuple[bytes, ...]
    norm: float | None  #: None: its dtype has no norm


class TensorBlocks(_Tagged, frozen=True):
    """Fingerprints of the blocks of some tensors."""

    by_path: dict[str, Blocks]


class BlockContents(_Tagged, frozen=True):
    """Some blocks of some tensors; their bytes are the frames beside the message, in this order."""

    numbers_by_path: dict[str, tuple[int, ...]]

    def with_bytes(self, frames: Sequence[bytes]) -> BytesByPath | None:
        """Return the bytes of each block; None: these are not the frames of this message."""
        if len(frames) != sum(map(len, self.numbers_by_path.values())):
            return None
        blocks = iter(frames)
        return {
            path: {number: next(blocks) for number in numbers}
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
    digest: str = ""  #: equal for equal values; empty: not known


class Variables(_Tagged, frozen=True):
    """The requested variables that a rank has."""

    variables: tuple[Variable, ...] = ()
    left_out: int = 0  #: number of variables beyond the limit


#: ``state``: its state can be given to other ranks by `nbddp.sync`, as that of modules and
#: optimizers; ``definition``: a module of Python, a function or a class; ``plain``: data that may
#: be copied to another rank, since it refers to nothing else.
NameKind: TypeAlias = Literal["state", "definition", "plain", "data"]


class Names(_Tagged, frozen=True):
    """The names that the user has bound on a rank; predefined ones and ``_x`` are left out."""

    kind_by_name: dict[str, NameKind] = {}
    #: Each name of a DDP model and of what has its parameters, with the names of such models: only
    #: all ranks together can make these. The same for sharded values.
    joint: dict[str, tuple[str, ...]] = {}


class RandomStates(_Tagged, frozen=True):
    """The digests of the states of the random generators that a rank has."""

    digest_by_generator: dict[str, str] = {}  #: those that its process has by itself
    digest_by_name: dict[str, str] = {}  #: generators in the user's variables
    #: Names whose values come from numbers that cells of the last catch-up drew without a seed.
    drawn: tuple[str, ...] = ()
    seeded: tuple[str, ...] = ()  #: generators of the process that these cells have seeded


ValueAnswer: TypeAlias = Tree | TensorBlocks | BlockContents | Variables | Names | RandomStates
