"""States of a rank and of a pool, and the legal moves between them.

Runs in: the notebook's process. Pure.
"""

from enum import Enum, auto
from typing import Literal, TypeAlias

import msgspec

from nbddp.wire.mesh_ranks import Mesh
from nbddp.wire.messages import RankExited
from nbddp.wire.rank_set import Rank


class RankState(Enum):
    """The stage of a rank's life.

    Example:
        >>> pool.ranks()[0].state.name
        'IDLE'
    """

    ABSENT = auto()  #: no process
    STARTING = auto()  #: its process exists, or is being made
    IDLE = auto()  #: waits for a cell
    BUSY = auto()  #: runs a cell
    EXITED = auto()  #: its process has ended

    # Each state is one object; the hash of its name takes ten times as long, for each rank.
    __hash__ = object.__hash__


LEGAL_MOVES: frozenset[tuple[RankState, RankState]] = frozenset(
    {
        (RankState.ABSENT, RankState.STARTING),
        (RankState.STARTING, RankState.IDLE),
        (RankState.STARTING, RankState.EXITED),
        (RankState.IDLE, RankState.BUSY),
        (RankState.IDLE, RankState.EXITED),
        (RankState.BUSY, RankState.IDLE),
        (RankState.BUSY, RankState.EXITED),
        (RankState.EXITED, RankState.STARTING),
        (RankState.EXITED, RankState.EXITED),  # its agent is lost as well
    }
)


class Phase(Enum):
    """The phase of the pool as a whole."""

    AGENTS = auto()  #: waits for the first messages of the agents
    STORE = auto()  #: waits for the store
    RANKS = auto()  #: waits for the ranks to be ready
    UP = auto()  #: takes cells
    STOPPING = auto()  #: ends ranks and store, to start new ones
    FAILED = auto()  #: could not start; all processes must be ended


#: The end of the process whose place another one took; empty: no process was replaced.
Replaced: TypeAlias = Literal["", "exited", "restarted"]


class RankInfo(msgspec.Struct, frozen=True, gc=False):
    """The state of one rank at one moment, as `Pool.ranks` gives it.

    Example:
        >>> info = pool.ranks()[1]
        >>> info.rank, info.node, info.device, info.backend
        (1, 0, 'cpu', 'gloo')
    """

    rank: Rank
    node: int  #: number of its node
    state: RankState = RankState.ABSENT
    pid: int = 0  #: process id; 0: it has none
    log_path: str = ""  #: file with its whole output
    device: str = ""  #: as torch writes it: ``cpu``, ``cuda:0``
    backend: str = ""  #: of its default process group: ``gloo``, ``nccl``
    note: str = ""  #: something the user should know, for example a fallback
    run_id: str | None = None  #: of the cell it is in
    exited: RankExited | None = None
    is_unwanted: bool = False  #: the user wants a fresh process in the place of this one
    replaced: Replaced = ""  #: the end of its predecessor in this pool; empty: it has none
    is_replacement: bool = False  #: it had a predecessor in this pool, whose variables are gone
    #: Processes that this rank has had before, counted by this notebook: a pid may come again.
    generation: int = 0
    meshes: tuple[Mesh, ...] = ()  #: that its variables hold, as of the end of its last cell
    history: tuple[str, ...] = ()  #: its latest moves

    @property
    def process(self) -> tuple[Rank, int]:
        """The rank and the generation: no other process of the pool has both.

        Example:
            >>> rank, generation = pool.ranks()[1].process
            >>> rank
            1
        """
        return self.rank, self.generation
