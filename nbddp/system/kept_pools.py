"""The pools of this user on this machine: the records in their folders.

Runs in: the notebook's process and the agents. The folder of a pool (`pool_folder`) can be entered
by its owner only. The record in it, with mode 0600, says which processes the pool has and which
notebook has it. That of a pool which may outlive its notebook also holds the secret with which
another notebook takes it back.

    notebook --write--> pool.json <--read-- another notebook
    agent without a notebook --> detached-0.json;  the last one --> ended.json, and no secret

The agents of a pool on other machines write nothing here. Its record is in ~/.nbddp/kept; the
notebook renews its date once a minute, so that a later one knows until when the agents wait.
NBDDP_POOLS_DIR names another folder for all of this.
"""

import os
import platform
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from nbddp.system import pool_folder, process_tree

State: TypeAlias = Literal["attached", "detached", "ended", "elsewhere"]
#: The cause where all processes of a pool were killed, so that no agent could say one.
_KILLED = "killed"
#: Begins the cause where a job of Slurm has ended; its number and state follow.
JOB_ENDED = "slurm:"
_RECORD, _ENDED, _LOCK = "pool.json", "ended.json", "attach.lock"
#: Records of pools on other machines, in the home folder.
_OF_MACHINES = Path(".nbddp", "kept")
#: The date of such a record is renewed this often.
RENEW_S = 60.0
#: Agents on other machines notice the end of their notebook this late at most.
_NOTICED_S = 150.0
_NOTE_S = 24 * 60 * 60.0


class ProcessId(msgspec.Struct, frozen=True):
    """A process, told from a later one that has the same number."""

    pid: int
    started: int  #: in clock ticks since the machine started

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """Describe a living process."""
        return cls(pid, process_tree.start_time(pid))

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return process_tree.lives_since(self.pid, self.started)

    def open(self) -> int:
        """Return a pidfd of the process; -1: it has ended."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return -1
        if not self.is_alive:  # asked now, since the number may have belonged to another process
            os.close(fd)
            return -1
        return fd


class MachinesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The facts with which another notebook takes back agents on other machines."""

    notebook_host: str  #: name of the notebook's machine
    address: str  #: of the hub, with the port: the agents connect to it again and again
    port: int
    keys: dict[str, str]  #: of the hub and its agents, see `PoolKeys`; a secret
    hosts: tuple[str, ...]  #: names of the machines, by node
    pids: tuple[int, ...]  #: of the agents there: another one may have taken the place of one
    mark: str = ""  #: what the engine knows its agents by
    job: str = ""  #: of the scheduler, in words, which no agent outlives; empty: none is known
    job_ends_at: float = 0.0  #: in seconds since 1970, if there is such a job


class PoolRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The record of a pool."""

    pool_id: str  #: its name
    described: str  #: its options in one line
    options: dict[str, Any]  #: its options by name
    world_size: int
    began_at: float  #: seconds since 1970, here and below
    notebook: ProcessId | None  #: that has the pool; None: it has let go of it
    notebook_since: float
    agents: tuple[ProcessId, ...]  #: by node
    keep_s: float = 0.0  #: for which it lives without a notebook; 0: it ends with the notebook
    hub: str = ""  #: path of the hub's socket
    token: str = ""  #: secret of the agents; empty: no other notebook can take the pool back
    use_arena: bool = True
    attachments: int = 0  #: how often it was taken back
    machines: MachinesRecord | None = None  #: None: all agents are on the notebook's machine


class Detachment(msgspec.Struct, frozen=True):
    """The time without a notebook, as an agent notes it."""

    since: float
    until: float


class Ended(msgspec.Struct, frozen=True):
    """The note that stays of a pool that has ended without a notebook; it holds no secret."""

    pool_id: str
    described: str
    world_size: int
    since: float
    reason: str  #: the cause of the end of its agents, see `end_text`


class KnownPool(msgspec.Struct, frozen=True):
    """A pool of this user, as ``%ddp pools`` lists it."""

    pool_id: str
    folder: Path
    described: str
    world_size: int
    state: State
    since: float  #: attached, detached or ended since then
    until: float | None  #: detached until then
    pid: int = 0  #: of the notebook that has it
    reason: str = ""  #: why it has ended
    hosts: tuple[str, ...] = ()  #: names of its machines, if they are others
    notebook_host: str = ""  #: where it can be attached, if that is another machine
    job: str = ""  #: as in `MachinesRecord`; the time limit may have been changed since then
    job_ends_at: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether its time is over: its agents end, each by its own clock, or have ended."""
        return self.until is not None and self.until < now()


def end_text(cause: str) -> str:
    """Say why a pool without a notebook has ended."""
    if cause == "not-attached":
        return "nobody attached in the time for which it was kept"
    if cause.startswith(JOB_ENDED):
        job, _, state = cause.removeprefix(JOB_ENDED).partition(" ")
        says = "is not known to Slurm any more" if state == "unknown" else f"has ended ({state})"
        return f"its Slurm job {job} {says}"
    return "its processes were ended"


def write(folder: Path, record: PoolRecord) -> None:
    """Write the record of a pool, readable by its owner only, at once as a whole."""
    _write(folder / _RECORD, record)


def read(folder: Path) -> PoolRecord | None:
    """Read the record of a pool; None: there is none."""
    record: PoolRecord | None = _read(folder / _RECORD, PoolRecord)
    return record


def renew(folder: Path) -> None:
    """Note that the notebook of a pool on other machines lives."""
    with suppress(OSError):
        os.utime(folder / _RECORD)


def folder_of_machines(pool_id: str) -> Path:
    """Make the folder for the record of a pool on other machines.

    Raises:
        OSError: it cannot be made.
    """
    folder, names = _of_machines()
    for name in (*names, pool_id):
        folder /= name
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def _of_machines() -> tuple[Path, tuple[str, ...]]:
    """Return the folder of the records of pools on other machines, and the names below it.

    Raises:
        RuntimeError: this user has no home.
    """
    if own := pool_folder.own_parent():
        return Path(own), _OF_MACHINES.parts[-1:]
    return Path.home(), _OF_MACHINES.parts


def has_record_of_machines(pool_id: str) -> bool:
    """Whether there is the record of a pool on other machines."""
    folder, names = _of_machines()
    return folder.joinpath(*names, pool_id, _RECORD).exists()


def remove_folder_of_machines(folder: Path) -> None:
    """Remove it, and the folders above it that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    _, names = _of_machines()
    for parent in list(folder.parents)[: len(names)]:
        with suppress(OSError):  # other pools have files there
            parent.rmdir()


def note_detached(folder: Path, node: int, keep_s: float) -> None:
    """Note that an agent has no notebook from now on."""
    since = now()
    with suppress(OSError):  # the disk is full: the agent knows its time all the same
        _write(folder / f"detached-{node}.json", Detachment(since, since + keep_s))


def note_attached(folder: Path, node: int) -> None:
    """Note that an agent has a notebook."""
    (folder / f"detached-{node}.json").unlink(missing_ok=True)


def end(folder: Path, reason: str) -> None:
    """Remove the folder of a pool without a notebook; of a kept one, a note stays for a day.

    Each agent of the pool calls this at its end; the last one removes the files.
    """
    record = read(folder)
    if record is None and (folder / _ENDED).exists():
        return  # another agent has left the note
    if record is None or not record.keep_s:
        shutil.rmtree(folder, ignore_errors=True)
    elif _is_last(folder, record):
        _leave_note(folder, record, reason)


def note_end(folder: Path, reason: str) -> None:
    """Leave the note of a kept pool without a notebook whose agents are known to have ended.

    Args:
        folder: of the record.
        reason: the cause, see `end_text`.
    """
    with attaching(folder) as is_ours:
        record = read(folder) if is_ours else None
        if record is not None:
            _leave_note(folder, record, reason)


def _is_last(folder: Path, record: PoolRecord) -> bool:
    """Note that this agent ends; return whether no other one needs the folder.

    Of agents that end at the same time, each sees the notes of the others, or is seen by them.
    """
    own = os.getpid()
    with suppress(OSError):
        _leaving(folder, own).touch(mode=0o600)
    others = [agent for agent in record.agents if agent.pid != own]
    return not any(each.is_alive and not _leaving(folder, each.pid).exists() for each in others)


def _leaving(folder: Path, pid: int) -> Path:
    return folder / f"leaving-{pid}"


def _leave_note(folder: Path, record: PoolRecord, reason: str) -> None:
    with suppress(OSError):
        if not (folder / _ENDED).exists():  # before the record goes: there is always one of them
            note = Ended(record.pool_id, record.described, record.world_size, now(), reason)
            _write(folder / _ENDED, note)
        for path in folder.iterdir():
            if path.name in (_ENDED, pool_folder.IN_USE):
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


@contextmanager
def attaching(folder: Path) -> Iterator[bool]:
    """Keep other notebooks from taking the pool meanwhile; False: one of them does so now."""
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        flock(fd, LOCK_EX | LOCK_NB)
    except OSError:
        yield False
    else:
        yield True
    finally:
        os.close(fd)


def known_pools() -> list[KnownPool]:
    """List the pools of this user on this machine, the oldest first, with those that left a note.

    The record of a pool whose processes were all killed is removed.
    """
    pools = [pool for folder in _folders() if (pool := _known(folder)) is not None]
    return sorted(pools, key=lambda pool: pool.since)


def detached_pools(known: Iterable[KnownPool] | None = None) -> list[KnownPool]:
    """List the pools that go on without a notebook, out of ``known`` ones or all."""
    pools = known_pools() if known is None else known
    return [pool for pool in pools if pool.state == "detached"]


def _folders() -> Iterator[Path]:
    folders = pool_folder.folders()
    with suppress(RuntimeError):  # this user has no home
        top, names = _of_machines()
        folders += top.joinpath(*names).glob("*")
    for folder in folders:
        with suppress(OSError):
            if not folder.is_symlink() and folder.stat().st_uid == os.getuid():
                yield folder


def _known(folder: Path) -> KnownPool | None:
    record = read(folder)
    if record is None:
        ended = _read(folder / _ENDED, Ended)
        if (
            ended is not None
            and folder.parent.name == _OF_MACHINES.name
            and now() > (ended.since + _NOTE_S)
        ):
            remove_folder_of_machines(folder)
            return None
        return None if ended is None else _of_note(folder, ended)
    if record.machines is not None:
        return _known_on_machines(folder, record, record.machines)
    is_attached = record.notebook is not None and record.notebook.is_alive
    if not is_attached and not any(agent.is_alive for agent in record.agents):
        with pool_folder.unused(folder) as is_unused:
            if is_unused:
                _leave_note(folder, record, _KILLED)
        ended = _read(folder / _ENDED, Ended)
        return None if ended is None else _of_note(folder, ended)
    detachment = None if is_attached else _detachment(folder, len(record.agents))
    return KnownPool(
        record.pool_id,
        folder,
        record.described,
        record.world_size,
        "attached" if is_attached else "detached",
        record.notebook_since if detachment is None else detachment.since,
        None if detachment is None else detachment.until,
        pid=record.notebook.pid if is_attached and record.notebook else 0,
    )


def _known_on_machines(
    folder: Path, record: PoolRecord, machines: MachinesRecord
) -> KnownPool | None:
    is_here = machines.notebook_host == platform.node()
    is_attached = is_here and record.notebook is not None and record.notebook.is_alive
    seen_at = record.notebook_since
    if record.notebook is not None:
        with suppress(FileNotFoundError):  # the notebook removes it now
            seen_at = max(seen_at, (folder / _RECORD).stat().st_mtime)
    if not is_attached and now() > seen_at + record.keep_s + RENEW_S + _NOTICED_S:
        _leave_note(folder, record, "not-attached")
        ended = _read(folder / _ENDED, Ended)
        return None if ended is None else _of_note(folder, ended)
    state: State = "elsewhere"
    if is_here:
        state = "attached" if is_attached else "detached"
    return KnownPool(
        record.pool_id,
        folder,
        record.described,
        record.world_size,
        state,
        record.notebook_since if is_attached else seen_at,
        None if is_attached else seen_at + record.keep_s,
        pid=record.notebook.pid if is_attached and record.notebook else 0,
        hosts=machines.hosts,
        notebook_host="" if is_here else machines.notebook_host,
        job=machines.job,
        job_ends_at=machines.job_ends_at,
    )


def _of_note(folder: Path, ended: Ended) -> KnownPool:
    return KnownPool(
        ended.pool_id,
        folder,
        ended.described,
        ended.world_size,
        "ended",
        ended.since,
        None,
        reason=end_text(ended.reason),
    )


def _detachment(folder: Path, nnodes: int) -> Detachment | None:
    notes = [_read(folder / f"detached-{node}.json", Detachment) for node in range(nnodes)]
    return min((note for note in notes if note), key=lambda note: note.until, default=None)


def now() -> float:
    """Return the seconds since 1970."""
    return time.time_ns() / 1e9


def _write(path: Path, value: msgspec.Struct) -> None:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(value))
    fresh.replace(path)


def _read(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError):
        return None
