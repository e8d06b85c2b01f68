"""Makes all groups of this rank traced groups.

Runs in: the rank process, the thread that makes the group.

    init_process_group, new_group, DeviceMesh, FSDP2, ...
      --> torch's helper (`torch_private.hook_group_creation`)
      --> GroupFactory.create: wait until all members are there, let torch make the stock group,
          wrap it in a `TracedGroup`, and register that instead
"""

import os
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore

from nbddp.rank import torch_private
from nbddp.rank.collectives import failure_cause, refusals
from nbddp.rank.collectives.gloo import futures, sockets
from nbddp.rank.collectives.group import TracedGroup
from nbddp.rank.collectives.group_members import MemberList, Members, SharedList
from nbddp.rank.collectives.recording import signatures
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.store_polls import StorePolls
from nbddp.rank.collectives.store_wait import RecordedWait, StoreWait
from nbddp.wire.flight_recorder import UNKNOWN_MEMBER, GroupInfo

#: Makes Gloo connect members at their first communication, and not when a group is made.
_LAZY_ENV = "TORCH_GLOO_LAZY_INIT"


class GroupFactory:
    """Makes groups; one per rank.

    Args:
        recorder: of this rank.
        pool: name of the pool, without spaces; a restart changes it.
        world_size: of the pool.
    """

    def __init__(self, recorder: Recorder, pool: str, world_size: int) -> None:
        self.recorder = recorder
        self.store_wait = StoreWait(recorder)
        self.store_polls = StorePolls(recorder)
        self.groups: dict[str, TracedGroup] = {}  # by pg_id, in the order of creation
        self.original: Callable[..., Any] | None = None
        #: The sockets from before, while C++ connects the members of a group; None: it does not.
        self.connecting: set[sockets.Socket] | None = None
        self._pool = pool
        self.world_size = world_size
        self._lock = threading.RLock()
        self._run_id: str | None = None
        #: Number of groups that were made in this cell, by name and ranks.
        self._made_counts: Counter[tuple[str, tuple[int, ...]]] = Counter()
        #: Number of calls of ``new_group`` in this cell, by name.
        self._call_counts: Counter[str] = Counter()
        self.has_made_groups = False  #: in this cell
        #: Called with the outputs of a backward before it begins, see `fault_strikes.Faults`.
        self.before_backward: Callable[[Any], None] | None = None
        self._cell = 0  # its number
        #: The cells that run again for a fresh rank, and how many groups they made, by cell and
        #: ranks; empty: they do not.
        self._replay = ""
        self._again_counts: Counter[tuple[int, tuple[int, ...]]] = Counter()
        #: Whether these cells leave the default group alone: all ranks have it, the fresh ones
        #: since the groups were rebuilt.
        self._keeps_default = False

    def install(self) -> bool:
        """Trace all groups from now on; False: this version of torch does not allow it."""
        self.original = torch_private.hook_group_creation(self.create, self.adopt_split)
        if self.original is None:
            return False
        torch_private.hook_batched_messages(TracedGroup)
        torch_private.hook_hashed_names()
        torch_private.hook_default_group(lambda: self._keeps_default)
        torch_private.hook_options()
        torch_private.hook_modules(_collectives_of)
        torch_private.hook_join()
        torch_private.hook_timeouts(_note_timeout)
        torch_private.hook_store_waits(self.store_wait.wait_for_store)
        torch_private.hook_store_questions(self.store_polls.note_key, self.store_polls.note_answer)
        torch_private.hook_store_connections(
            self.store_wait.wait_for_store, self.store_wait.connect
        )
        torch_private.hook_backward(self._wrap_backward)
        torch_private.hook_builtin_comm_hooks(futures.keep_original)
        return True

    def begin_cell(self, number: int, replay: str) -> None:
        """Begin a cell.

        Args:
            number: of the cell.
            replay: see `Execute.aside_id`; empty: the cell does not run again.
        """
        self.has_made_groups, self._cell = False, number
        if replay != self._replay:
            self._replay = replay
            self._again_counts.clear()
            self._keeps_default = bool(replay) and torch_private.default_group() is not None

    # --- creation ------------------------------------------------------------------------------

    def create(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Make a group, instead of torch's own helper."""
        store, size = arguments["store"], arguments["group_size"]
        group_rank, name = arguments["group_rank"], str(arguments["group_name"])
        is_member = isinstance(group_rank, int) and 0 <= group_rank < size
        ranks = list(arguments["global_ranks_in_group"]) or list(range(size))
        expected = self.pool_ranks(ranks)
        self._refuse_alone(name, expected)
        if not is_member or self.recorder.is_child or str(arguments["backend"]) in ("mpi", "fake"):
            return original(**arguments)
        again = self._made_before(expected) if arguments["global_ranks_in_group"] else None
        if again is not None:
            return again, torch_private.registered(again)[1]
        prefix = torch_private.shared_prefix(store)
        shared_list = None
        if prefix is not None and arguments["global_ranks_in_group"]:
            shared_list = self._compare_list(store, name, ranks)
        record = self._record_creation(name, expected, ranks, prefix, arguments)
        key = f"nbddp/{name}" if prefix is None else self._key(name, ranks)
        member_list = MemberList(store, key, group_rank, size)
        stock = None
        is_new = torch_private.group_named(name) is None
        try:
            with RecordedWait(self.recorder, record):
                members = self._assemble(member_list, store, key, prefix, arguments)
                if members is not None and arguments["global_ranks_in_group"]:
                    # Addresses that an earlier group of this name has left must not be found.
                    arguments["store"] = PrefixStore(f"nbddp/{members.identity}", store)
                stock, stock_store, connections = self._make(original, arguments)
                # Gloo has waited for all members if the store is one of the user.
                members = members or member_list.read(self._pool)
                if members is not None:
                    # A member that destroyed the group now would disconnect members that connect.
                    made_key = f"nbddp/{name}/{members.identity}/made"
                    self.store_wait.gather(store, made_key, size, arguments["timeout"])
        except BaseException:
            # This includes a group that torch had made when it was interrupted.
            leftover = torch_private.group_named(name) if is_new else stock
            if leftover is not None and not isinstance(leftover, TracedGroup):
                torch_private.forget_registered(leftover, name)
            if shared_list is not None:
                shared_list.withdraw()
            self._uncount(name)
            raise
        self._made_counts[name, tuple(ranks)] += 1
        self.has_made_groups = True
        is_traced = isinstance(stock, TracedGroup) or not hasattr(stock, "_device_types")
        if members is None or is_traced:
            return stock, stock_store
        group = self._wrap(stock, name, members, arguments)
        group.fds = connections
        if connects_at_once(arguments):
            sockets.refuse_new(connections)  # all members are connected
        # Groups made from this one derive their stores from this store.
        torch_private.share_store(stock_store, group.counters.info.pg_id)
        torch_private.exchange_registered(stock, group, name)
        return group, stock_store

    def _made_before(self, ranks: tuple[int, ...]) -> TracedGroup | None:
        """The group that a cell made when it ran first, if it runs again for a fresh rank.

        All members have it still, the fresh one since the groups were rebuilt. With another group
        it would wait until the timeout for ranks that use the first one.
        """
        if not self._replay:
            return None
        made = [
            group
            for group in list(self.groups.values())
            if not (info := group.counters.info).is_default
            and (info.cell, info.ranks) == (self._cell, ranks)
        ]
        number = self._again_counts[self._cell, ranks]
        self._again_counts[self._cell, ranks] += 1
        return made[number] if number < len(made) else None

    def _assemble(
        self,
        member_list: MemberList,
        store: Any,
        key: str,
        prefix: str | None,
        arguments: dict[str, Any],
    ) -> Members | None:
        """Report this rank to the other members, and wait for them if possible.

        After this, no rank has to wait in C++ for a member that never comes. In a store of the
        user, a member may be another process than a rank of this pool, and write no card: there
        Gloo waits for the members.

        Returns:
            The members; None: they are not known before torch has connected them.
        """
        member_list.enter(self._pool, self.recorder.rank, is_new=prefix is not None)
        timeout = arguments["timeout"]
        if prefix is not None:
            self.store_wait.gather(store, f"{key}/arrived", len(member_list.keys), timeout)
        elif connects_at_once(arguments):
            return None
        else:
            self.store_wait.wait(store, member_list.keys, timeout)
        return member_list.read(self._pool)

    def pool_ranks(self, ranks: list[int]) -> tuple[int, ...]:
        """Convert ranks of the default group to ranks of the pool; empty: not known yet."""
        world = torch_private.default_group()
        if isinstance(world, TracedGroup):
            pool_ranks = world.counters.ranks
            return tuple(pool_ranks[rank] for rank in ranks if 0 <= rank < len(pool_ranks))
        if world is None and len(ranks) == 1:
            return (self.recorder.rank,)
        # The user may have numbered the ranks differently, but cannot have left one out.
        is_everybody = world is None and len(ranks) == self.world_size
        return tuple(range(self.world_size)) if is_everybody else ()

    def _refuse_alone(self, name: str, members: tuple[int, ...]) -> None:
        world = torch_private.default_group()
        if isinstance(world, TracedGroup) and _is_counted(name):
            members = world.counters.ranks  # ranks that are no members count the group as well
        try:
            op = "init_process_group" if world is None else "new_group"
            refusals.refuse(self.recorder, op, members or range(self.world_size))
            if world is not None and _is_counted(name):
                refusals.refuse_in_part(self.recorder, op, members)
        except BaseException:
            self._uncount(name)
            raise

    def _compare_list(self, store: Any, name: str, ranks: list[int]) -> SharedList | None:
        """Refuse a list of members without any member of the list that another rank has passed.

        A call that has failed may be repeated with another list, so calls of the same name are
        counted.

        Raises:
            CollectiveRefusedError: the lists have no member in common.
        """
        if not _is_counted(name) or len(ranks) == 1 or self.recorder.run_id is None:
            return None
        self._begin_cell()
        key = f"nbddp/{name}/{self._run_id}/{self._call_counts[name]}/list"
        self._call_counts[name] += 1
        shared_list = SharedList(store, key)
        try:
            shared_list.compare(self.recorder.rank, ranks)
        except BaseException:
            self._uncount(name)
            raise
        return shared_list

    def _begin_cell(self) -> None:
        """Count groups from zero in each cell."""
        if self._run_id != self.recorder.run_id:
            self._run_id = self.recorder.run_id
            self._made_counts.clear()
            self._call_counts.clear()

    def _uncount(self, name: str) -> None:
        """Undo torch's count of a group, so that the next one has the same name on all ranks."""
        if _is_counted(name):
            torch_private.set_group_count(torch_private.group_count() - 1)

    def adopt_split(self, stock: Any) -> Any:
        """Wrap a group that ``split_group`` has made."""
        if stock is None or isinstance(stock, TracedGroup) or self.recorder.is_child:
            return stock
        backend, store = torch_private.registered(stock)
        name = stock.group_name
        member_list = MemberList(store, f"nbddp/{name}", stock.rank(), stock.size())
        member_list.enter(self._pool, self.recorder.rank, is_new=False)
        self.store_wait.wait(store, member_list.keys, None)
        members = member_list.read(self._pool)
        if members is None:
            return stock
        arguments = {"backend": backend, "timeout": None, "group_desc": stock.group_desc}
        group = self._wrap(stock, name, members, arguments)
        torch_private.exchange_registered(stock, group, name)
        return group

    def make_inner(self, arguments: dict[str, Any], name: str, store: Any) -> tuple[Any, list[Any]]:
        """Make a stock group with these arguments, without registering it with torch.

        Gloo waits in C++ for members that have died meanwhile. Its thread is left there when
        `abort` ends the attempt, and the next attempt has another name.

        Raises:
            BaseException: the reason of the abort, or an error of torch.
        """
        original = self.original
        assert original is not None  # noqa: S101 - see install
        inner_arguments = {**arguments, "group_name": name, "store": store, "pg_tag": None}

        def make() -> tuple[Any, list[Any]]:
            stock, _, connections = self._make(original, inner_arguments)
            torch_private.forget_registered(stock, name)
            return stock, connections

        # Other backends must be made in this thread, because CUDA has a device for each thread.
        return (
            self.store_wait.run_in_thread(make)
            if str(inner_arguments["backend"]) == "gloo"
            else make()
        )

    def _make(
        self, original: Callable[..., Any], arguments: dict[str, Any]
    ) -> tuple[Any, Any, list[sockets.Socket]]:
        with self.connecting_others() as before:
            stock, store = original(**arguments)
        return stock, store, sorted(sockets.tcp_sockets() - before)

    @contextmanager
    def connecting_others(self) -> Iterator[set[sockets.Socket]]:
        """Let `abort` end the connecting of ranks by C++ within this block.

        Yields:
            The sockets from before.

        Raises:
            BaseException: the reason of the abort.
        """
        before = sockets.tcp_sockets()
        self.connecting = before
        try:
            yield before
        except RuntimeError as error:
            if self.store_wait.ended is not None:
                raise self.store_wait.ended() from error
            raise
        finally:
            if self.connecting is before:  # a later attempt may have set it
                self.connecting = None

    def _key(self, name: str, ranks: list[int]) -> str:
        """Return the key of this group in a store that only ranks of this pool use.

        It has the cell, because a rank that came in an earlier cell, and was freed, does not count.
        In a group of one, all ranks may have rank 0: each is alone there.
        """
        self._begin_cell()
        members = zlib.crc32(repr(ranks if len(ranks) > 1 else [self.recorder.rank, 1]).encode())
        return f"nbddp/{name}/{self._run_id}/{members:08x}/{self._made_counts[name, tuple(ranks)]}"

    def _record_creation(
        self,
        name: str,
        expected: tuple[int, ...],
        ranks: list[int],
        prefix: str | None,
        arguments: dict[str, Any],
    ) -> int:
        op = "new_group" if arguments["global_ranks_in_group"] else "init_process_group"
        members = tuple(map(str, expected)) or (UNKNOWN_MEMBER,) * len(ranks)
        recorder = self.recorder
        known = signatures.known(signatures.make("creation", op, keys=members))
        info = GroupInfo.of(
            pg_id=f"{name}@{prefix or ''}@{zlib.crc32(repr(ranks).encode()):08x}",
            name=name,
            desc=str(arguments.get("group_desc") or ""),
            ranks=expected,
            backend=str(arguments["backend"]),
        )
        timeout = arguments.get("timeout")
        milliseconds = int(timeout.total_seconds() * 1000) if timeout is not None else 0
        return recorder.other(known, GroupCounters(info), milliseconds)

    def _wrap(
        self, stock: Any, name: str, members: Members, arguments: dict[str, Any]
    ) -> TracedGroup:
        timeout = arguments.get("timeout")
        info = GroupInfo.of(
            pg_id=f"{name}:{members.identity}",
            name=name,
            desc=str(arguments.get("group_desc") or ""),
            ranks=members.ranks,
            backend=str(arguments["backend"]),
            timeout_ms=int(timeout.total_seconds() * 1000) if timeout is not None else 0,
            cell=0 if self._replay else self._cell,
            run_id=self.recorder.run_id,
        )
        return self.wrap(stock, GroupCounters(info), arguments)

    def wrap(self, stock: Any, counters: GroupCounters, arguments: dict[str, Any]) -> TracedGroup:
        """Wrap a stock group in a traced one, which is not registered with torch yet."""
        group = TracedGroup(stock, counters, self.recorder)
        group.creation = {**arguments, "store": None}
        group.setGroupName(counters.info.name)
        group.forget = self._forget
        with self._lock:
            self.groups[counters.info.pg_id] = group
            self.recorder.counters_by_group[counters.info.pg_id] = counters
        return group

    def _forget(self, group: TracedGroup) -> None:
        """Forget a group that the user has destroyed."""
        with self._lock:
            self.groups.pop(group.counters.info.pg_id, None)
            self.recorder.counters_by_group.pop(group.counters.info.pg_id, None)
        self.recorder.board.forget(group.counters.info.pg_id)
        torch_private.forget_meshes()

    def _wrap_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap autograd's engine, because C++ raises errors of its own when a group was aborted."""

        def run(*args: Any, **kwargs: Any) -> Any:
            if self.before_backward is not None:
                self.before_backward(args[0])
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                _break_unfinished()
                if not isinstance(error, RuntimeError):
                    raise
                shown = futures.as_raised(error)
                ended = self.abort_error() or failure_cause.lost_peer_error(error)
                try:
                    if ended is not None and type(error) is not type(ended):
                        raise ended from shown
                    if shown is not error:
                        raise shown from None
                    raise
                finally:
                    del ended, shown  # see `work.TracedWork.wait`

        return run

    def abort_error(self) -> BaseException | None:
        """Return the exception to raise if a group was aborted and is not rebuilt yet."""
        for group in list(self.groups.values()):
            if group.counters.ended is not None:
                return group.counters.ended()
        return None


def _break_unfinished() -> None:
    """Mark groups as broken whose DDP modules a failed backward has left in the middle.

    They are rebuilt at the end of the cell, on all ranks, so that modules which begin again rebuild
    their buckets together.
    """
    _break(torch_private.groups_of_unfinished())


def break_torn(*, has_failed: bool) -> None:
    """Mark groups as broken whose sharded modules were left in the middle, at the end of a cell.

    These may be left in the middle of a forward as well.
    """
    _break(torch_private.groups_of_torn(has_failed=has_failed))


def _break(groups: list[Any]) -> None:
    for group in groups:
        if isinstance(group, TracedGroup):
            group.counters.is_broken = True


def _collectives_of(group: Any) -> int:
    """Return the number of collectives that a group has begun; 0 for one of torch's own."""
    return group.counters.seq if isinstance(group, TracedGroup) else 0


def _is_counted(name: str) -> bool:
    """Return whether torch has just made this name from its counter of groups."""
    return name == str(torch_private.group_count() - 1)


def _note_timeout(group: Any, timeout: timedelta) -> None:
    if isinstance(group, TracedGroup):
        group.note_timeout(timeout)


def connects_at_once(arguments: dict[str, Any]) -> bool:
    """Return whether torch waits for all members when it makes the group."""
    is_lazy = os.environ.get(_LAZY_ENV, "0").lower() not in ("", "0", "false", "off", "no", "n")
    backend = str(arguments["backend"])
    return ("gloo" in backend or backend == "undefined") and not is_lazy
