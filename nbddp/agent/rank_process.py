"""The processes of one node: ranks, store, and whatever they left behind.

Runs in: the agent's thread. Ending is always the same ladder: ask, SIGTERM, SIGKILL, with limits,
for all ranks at once, by process id of processes that we started or that descend from them.
"""

import itertools
import os
import signal
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nbddp.agent.child_process import Child
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.output_pipes import RankPipes
from nbddp.settings import RANK_MARK_ENV
from nbddp.system import process_tree
from nbddp.wire import channels
from nbddp.wire.launch_specs import AgentLaunch, InheritedFd, RankLaunch
from nbddp.wire.messages import StartRanks

#: No two processes of this agent have the same mark, so that what a dead one left is not confused
#: with what belongs to the one in its place.
_serials = itertools.count(1)
#: Processes looked at in one step of a search: less than a millisecond.
_AT_ONCE = 20
#: From an interrupt to the word that the cell has begun.
_BEGIN_S = 0.3
_NEVER = float("inf")


@dataclass
class RankProcess:
    """One rank: its process, its pipes, the cell it runs."""

    rank: int
    pid: int  #: its process group has the same number
    process: Child
    pipes: RankPipes
    log_path: Path
    mark: str  #: in the environment of everything that the rank starts
    identity: bytes  #: under which it connects
    #: Descendants seen so far that still live, and when they were started.
    descendants: dict[int, int] = field(default_factory=dict)
    pulling: str = ""  #: the request about values for which it runs code
    awaited: str = ""  #: the cell or the value that was sent last
    has_begun: bool = False  #: that one
    is_interrupted: bool = False  #: likewise
    #: Then a rank that has not said that it has begun is interrupted all the same.
    interrupt_at: float = _NEVER
    is_ready: bool = False  #: it has sent `RankReady`
    ended_by: str = ""  #: what has ended it on somebody's request

    @classmethod
    def start(
        cls,
        maker: ProcessMaker,
        agent: AgentLaunch,
        request: StartRanks,
        local_rank: int,
        records_fd: int | None,
    ) -> "RankProcess":
        """Make the process of one rank. Raises what making a process or its log may raise.

        Args:
            maker: makes processes.
            agent: what the agent knows.
            request: what the rank is to be.
            local_rank: its number on this node.
            records_fd: of the shared memory for its records, if there is to be one.
        """
        rank = agent.node * request.pool.nproc_per_node + local_rank
        log_folder = Path(agent.folder)
        if agent.settings.log_dir:
            log_folder = Path(agent.settings.log_dir, f"nbddp-{agent.pool_id}")
            log_folder.mkdir(parents=True, exist_ok=True)
        log_path = log_folder / f"rank{rank}.log"
        pipes = RankPipes(
            rank,
            log_path,
            agent.settings,
            sharers=request.pool.world_size,
            heading=f"a fresh process takes the place of rank {rank}" if request.ranks else "",
        )
        stdout, stderr, fault = pipes.write_ends()
        identity = channels.rank_identity(rank)
        mark = f"{agent.pool_id}.{request.pool.generation}.{rank}.{next(_serials)}"
        launch = RankLaunch(
            pool=request.pool,
            rank=rank,
            local_rank=local_rank,
            node=agent.node,
            master_addr=request.master_addr,
            master_port=request.master_port,
            agent_address=channels.ipc_address(agent.rank_socket),
            identity=identity,
            agent_pid=os.getpid(),
            mark=mark,
            forked=maker.forks,
            stdout=stdout,
            stderr=stderr,
            fault=fault,
            records=None if records_fd is None else InheritedFd(records_fd),
            joins=request.joins,
        )
        try:
            process = maker.start("nbddp.rank.main", launch, f"nbddp-rank-{rank}")
        except BaseException:
            pipes.close()
            raise
        finally:
            pipes.close_write_ends()
        return cls(
            rank=rank,
            pid=process.pid,
            process=process,
            pipes=pipes,
            log_path=log_path,
            mark=mark,
            identity=identity,
        )

    def await_begin(self, run_id: str) -> None:
        """A cell was sent. Until the rank has begun it, SIGINT would find nothing to interrupt."""
        self.awaited = run_id
        self.has_begun = False
        self.is_interrupted = False
        self.interrupt_at = _NEVER

    def see_begin(self, run_id: str) -> None:
        """The rank has begun a cell: the one that was sent last, or one before it."""
        if run_id != self.awaited:
            return
        self.has_begun = True
        self.interrupt_at = _NEVER
        if self.is_interrupted:
            self.interrupt()

    def interrupt_in_cell(self, now: float) -> None:
        """SIGINT, now or as soon as the rank has begun the cell."""
        self.is_interrupted = True
        if self.has_begun:
            self.interrupt()
        else:
            self.interrupt_at = min(self.interrupt_at, now + _BEGIN_S)

    def interrupt_if_due(self, now: float) -> None:
        """SIGINT to a rank that should have begun the cell.

        It may have, and hold the GIL ever since, so that its I/O thread cannot say so. If it has
        not, the signal means nothing, and comes again when it has.
        """
        if now >= self.interrupt_at:
            self.interrupt_at = _NEVER
            self.interrupt()

    def interrupt(self) -> None:
        """SIGINT to the rank and its children, as a terminal does: workers must stop as well."""
        process_tree.kill_quietly(self.pid, signal.SIGINT, group=True)

    def terminate(self) -> None:
        """SIGTERM."""
        process_tree.kill_quietly(self.pid, signal.SIGTERM)

    def kill(self, ended_by: str = "") -> None:
        """SIGKILL; what descends from it ends when it has ended.

        Args:
            ended_by: what the user is told has ended it.
        """
        self.ended_by = ended_by or self.ended_by
        self.see_descendants()
        process_tree.kill_quietly(self.pid, signal.SIGKILL)

    def see_descendants(self) -> None:
        """Remember who descends from it: who loses its parent cannot be told from others later."""
        living = {pid: start for pid, start in self.descendants.items() if _start(pid) == start}
        self.descendants = living | {
            pid: _start(pid) for pid in process_tree.descendants_of(self.pid)
        }

    def collect(self) -> int | None:
        """After it ended: end its process group and give its exit code, see `Child.collect`.

        `end_remains` is for what has left the group.
        """
        process_tree.kill_quietly(self.pid, signal.SIGKILL, group=True)
        return self.process.collect()

    def end_remains(self) -> Iterator[None]:
        """After `collect`, while other ranks live on: end what it has left behind, step by step.

        It is found because it was seen before, by its session, or by the mark in its environment.
        That search reads of each process of the machine, and the other ranks must not wait for it.
        """
        seen = {pid for pid, start in self.descendants.items() if _start(pid) == start}
        orphans = process_tree.children_of(os.getpid())
        seen |= {pid for pid in orphans if process_tree.session_and_start(pid)[0] == self.pid}
        _end_with_descendants(seen)
        for number, pid in enumerate(process_tree.processes()):
            if number % _AT_ONCE == 0:
                yield
            if process_tree.was_started_with(pid, RANK_MARK_ENV, self.mark):
                _end_with_descendants({pid})


class Remains:
    """What dead ranks have left behind while others live on."""

    def __init__(self) -> None:
        self._searches: deque[Iterator[None]] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing more to do."""
        return not self._searches

    def add(self, process: RankProcess) -> None:
        """A rank has ended and was collected."""
        self._searches.append(process.end_remains())

    def step(self) -> None:
        """A little of the work."""
        if self._searches:
            try:
                next(self._searches[0])
            except StopIteration:
                self._searches.popleft()

    def clear(self) -> None:
        """All orphans have been ended."""
        self._searches.clear()


def _end_with_descendants(pids: set[int]) -> None:
    below = [process_tree.descendants_of(pid) for pid in pids]
    for pid in pids.union(*below):
        process_tree.kill_quietly(pid, signal.SIGKILL)


def _start(pid: int) -> int:
    return process_tree.session_and_start(pid)[1]


def end_orphans(known: set[int]) -> bool:
    """End and reap the orphans that this process adopted; tells whether none is left."""
    orphans = process_tree.children_of(os.getpid()) - known
    for pid in orphans:
        process_tree.kill_quietly(pid, signal.SIGKILL)
    reap_orphans(known)
    return not orphans


def reap_orphans(known: set[int]) -> None:
    """Collect adopted orphans that have ended, so that no zombie stays."""
    for pid in process_tree.children_of(os.getpid()) - known:
        with suppress(ChildProcessError):  # collected meanwhile
            os.waitpid(pid, os.WNOHANG)
