"""The process of one rank on this node.

Runs in: the agent's thread. Ranks always end by the same ladder: ask, SIGTERM, SIGKILL, with
limits, for all ranks at once. Signals go to process ids of processes that we started, and of their
descendants.
"""

import itertools
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

from nbddp.agent.child_process import Child
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.output_pipes import RankPipes
from nbddp.system import process_tree
from nbddp.wire import channels
from nbddp.wire.launch_specs import AgentLaunch, InheritedFd, RankLaunch
from nbddp.wire.messages import StartRanks

#: No two processes of this agent have the same mark, so that leftovers of a dead rank are not
#: confused with processes of the rank that takes its place.
_serials = itertools.count(1)
#: Time between an interrupt and the report that the cell has begun.
_BEGIN_S = 0.3
_NEVER = float("inf")


def log_path_of(agent: AgentLaunch, rank: int) -> Path:
    """Return the path of the log of a rank; all processes in its place write to one file."""
    folder = Path(agent.folder)
    if agent.settings.log_dir:
        folder = Path(agent.settings.log_dir, f"nbddp-{agent.pool_id}")
    return folder / f"rank{rank}.log"


@dataclass
class RankProcess:
    """One rank: its process, its pipes, and the cell that it runs."""

    rank: int
    pid: int  #: its process group has the same number
    process: Child
    pipes: RankPipes
    log_path: Path
    mark: str  #: in the environment of every process that the rank starts
    identity: bytes  #: of its connection
    #: Living descendants seen so far, and their start times.
    descendants: dict[int, int] = field(default_factory=dict)
    pulling: str = ""  #: the request about values for which it runs code
    awaited: str = ""  #: the cell or the request for a value that was sent last
    has_begun: bool = False  #: the rank has begun the awaited one
    is_interrupted: bool = False  #: the awaited one is to be interrupted
    #: A rank that has not reported its begin by then is interrupted in any case.
    interrupt_at: float = _NEVER
    is_ready: bool = False  #: it has sent `RankReady`
    was_killed_on_request: bool = False  #: the notebook asked for its end by `KillRanks`

    @classmethod
    def start(
        cls,
        maker: ProcessMaker,
        agent: AgentLaunch,
        request: StartRanks,
        local_rank: int,
        records_fd: int | None,
    ) -> "RankProcess":
        """Make the process of one rank.

        Args:
            maker: makes processes.
            agent: how the agent was launched.
            request: options of the rank.
            local_rank: its number on this node.
            records_fd: descriptor of the shared memory for its records; None: it keeps no records.

        Raises:
            OSError: the log, the pipes or the process cannot be made.
            RuntimeError: as `ProcessMaker.start`.
        """
        rank = agent.node * request.pool.nproc_per_node + local_rank
        log_path = log_path_of(agent, rank)
        log_path.parent.mkdir(parents=True, exist_ok=True)
        pipes = RankPipes(
            rank,
            log_path,
            agent.settings,
            sharers=request.pool.world_size,
            heading=f"a fresh process takes the place of rank {rank}" if request.ranks else "",
        )
        stdout, stderr, stacks = pipes.write_ends()
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
            stacks=stacks,
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
        """Note that a cell was sent. SIGINT has nothing to interrupt until the rank begins it."""
        self.awaited = run_id
        self.has_begun = False
        self.is_interrupted = False
        self.interrupt_at = _NEVER

    def note_begun(self, run_id: str) -> None:
        """Note that the rank has begun a cell: the one that was sent last, or one before it."""
        if run_id != self.awaited:
            return
        self.has_begun = True
        self.interrupt_at = _NEVER
        if self.is_interrupted:
            self.interrupt()

    def interrupt_in_cell(self, now: float) -> None:
        """Send SIGINT, now or as soon as the rank has begun the cell."""
        self.is_interrupted = True
        if self.has_begun:
            self.interrupt()
        else:
            self.interrupt_at = min(self.interrupt_at, now + _BEGIN_S)

    def interrupt_if_due(self, now: float) -> None:
        """Send SIGINT to a rank that should have begun the cell.

        The rank may have begun it and hold the GIL ever since, so that its I/O thread cannot report
        this. If it has not begun, the signal has no effect, and is sent again when it has.
        """
        if now >= self.interrupt_at:
            self.interrupt_at = _NEVER
            self.interrupt()

    def interrupt(self) -> None:
        """Send SIGINT to the rank and its children, as a terminal does: workers must stop too."""
        process_tree.kill_quietly(self.pid, signal.SIGINT, group=True)

    def terminate(self) -> None:
        """Send SIGTERM."""
        process_tree.kill_quietly(self.pid, signal.SIGTERM)

    def kill(self, *, on_request: bool = False) -> None:
        """Send SIGKILL; descendants of the rank end after it has ended.

        Args:
            on_request: the notebook asked for it, for the message to the user.
        """
        self.was_killed_on_request |= on_request
        self.record_descendants()
        process_tree.kill_quietly(self.pid, signal.SIGKILL)

    def record_descendants(self) -> None:
        """Record the descendants of the rank.

        A process that loses its parent later cannot be distinguished from other orphans.
        """
        living = {
            pid: start
            for pid, start in self.descendants.items()
            if process_tree.start_time(pid) == start
        }
        self.descendants = living | {
            pid: process_tree.start_time(pid) for pid in process_tree.descendants_of(self.pid)
        }

    def collect(self) -> int | None:
        """End the process group of the ended rank, and return its exit code as `Child.collect`.

        `nbddp.agent.leftovers` ends the processes that have left the group.
        """
        process_tree.kill_quietly(self.pid, signal.SIGKILL, group=True)
        return self.process.collect()
