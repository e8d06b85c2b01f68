"""Makes every group of this rank a traced one.

Runs in: the rank process, the thread that makes the group.

    init_process_group, new_group, DeviceMesh, FSDP2, ...
      --> torch's helper (`torch_private.hook_group_creation`)
      --> Creator.create: wait until all members are there, let torch make the stock group,
          put a `TracedGroup` around it and in its place
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
from nbddp.rank.collectives import callback_rules, failure_cause
from nbddp.rank.collectives.gloo import futures, sockets
from nbddp.rank.collectives.group import TracedGroup
from nbddp.rank.collectives.group_members import MemberList, Members
from nbddp.rank.collectives.recording import signatures
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.collectives.store_wait import RecordedWait, StoreWait
from nbddp.wire.flight_recorder.schema import UNKNOWN_MEMBER, GroupInfo

#: Set to make Gloo connect members when they first communicate, and not when a group is made.
_LAZY_ENV = "TORCH_GLOO_LAZY_INIT"


class GroupFactory:
    """Makes groups; one per rank.

    Args:
        recorder: of this rank.
        pool: names the pool, without spaces; a restart gives it another name.
        world_size: of the pool.
    """

    def __init__(self, recorder: Recorder, pool: str, world_size: int) -> None:
        self.recorder = recorder
        self.patience = StoreWait(recorder)
        self.groups: dict[str, TracedGroup] = {}  # by pg_id, in the order of creation
        self.original: Callable[..., Any] | None = None
        #: While C++ connects the members of a group: the sockets that were there before.
        self.connecting: set[sockets.Socket] | None = None
        self._pool = pool
        self.world_size = world_size
        self._lock = threading.RLock()
        self._run_id: str | None = None
        #: How many groups of a name and these ranks were made in this cell.
        self._made: Counter[tuple[str, tuple[int, ...]]] = Counter()

    def install(self) -> bool:
        """From now on all groups are traced; False if this version of torch cannot have it."""
        self.original = torch_private.hook_group_creation(self.create, self.adopt_split)
        if self.original is None:
            return False
        torch_private.hook_batched_messages(TracedGroup)
        torch_private.hook_hashed_names()
        torch_private.hook_options()
        torch_private.hook_ddp()
        torch_private.hook_join()
        torch_private.hook_timeouts(_note_timeout)
        torch_private.hook_store_waits(self.patience.wait_for_store)
        torch_private.hook_backward(self._backward)
        torch_private.hook_builtin_comm_hooks(futures.keep_original)
        return True

    # --- creation ------------------------------------------------------------------------------

    def create(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Stands before torch's own helper."""
        store, size = arguments["store"], arguments["group_size"]
        group_rank, name = arguments["group_rank"], str(arguments["group_name"])
        is_member = isinstance(group_rank, int) and 0 <= group_rank < size
        ranks = list(arguments["global_ranks_in_group"]) or list(range(size))
        expected = self._pool_ranks(ranks)
        self._refuse_alone(name, expected)
        if not is_member or self.recorder.is_child or str(arguments["backend"]) in ("mpi", "fake"):
            return original(**arguments)
        prefix = torch_private.shared_prefix(store)
        record = self._record_creation(name, expected, ranks, prefix, arguments)
        key = f"nbddp/{name}" if prefix is None else self._key(name, ranks)
        roster = MemberList(store, key, group_rank, size)
        stock = None
        is_new = torch_private.named(name) is None
        try:
            with RecordedWait(self.recorder, record):
                members = self._assemble(roster, store, key, prefix, arguments)
                if members is not None and arguments["global_ranks_in_group"]:
                    # Addresses that a gone group of this name has left are not for this one.
                    arguments["store"] = PrefixStore(f"nbddp/{members.identity}", store)
                stock, stock_store, found = self._make(original, arguments)
                # In a store of the user's own, Gloo has waited for all members.
                members = members or roster.read(self._pool)
                if members is not None:
                    # A member that destroyed the group at once would cut those that connect.
                    made = f"nbddp/{name}/{members.identity}/made"
                    self.patience.gather(store, made, size, arguments["timeout"])
        except BaseException:
            # Also what torch had made when it was interrupted.
            left = torch_private.named(name) if is_new else stock
            if left is not None and not isinstance(left, TracedGroup):
                torch_private.forget_registered(left, name)
            self._give_back(name)
            raise
        self._made[name, tuple(ranks)] += 1
        is_traced = isinstance(stock, TracedGroup) or not hasattr(stock, "_device_types")
        if members is None or is_traced:
            return stock, stock_store
        group = self._wrap(stock, name, members, arguments)
        group.fds = found
        if connects_at_once(arguments):
            sockets.refuse_new(found)  # all members are connected
        # Groups made from this one take their store from here, and meet there.
        torch_private.share_store(stock_store, group.book.info.pg_id)
        torch_private.exchange_registered(stock, group, name)
        return group, stock_store

    def _assemble(
        self,
        roster: MemberList,
        store: Any,
        key: str,
        prefix: str | None,
        arguments: dict[str, Any],
    ) -> Members | None:
        """Tell the other members that this rank is here, and wait for them if it is known how.

        After this nobody has to wait in C++ for a member that never comes. In a store of the user's
        own a member may be another process than a rank of this pool, and leave no card: there Gloo
        waits for the members.

        Returns:
            the members; None: they are not known before torch has connected them.
        """
        roster.enter(self._pool, self.recorder.rank)
        timeout = arguments["timeout"]
        if prefix is not None:
            self.patience.gather(store, f"{key}/arrived", len(roster.keys), timeout)
        elif connects_at_once(arguments):
            return None
        else:
            self.patience.wait(store, roster.keys, timeout)
        return roster.read(self._pool)

    def _pool_ranks(self, ranks: list[int]) -> tuple[int, ...]:
        """Ranks as torch counts them, as ranks of the pool; empty: they are not known yet."""
        world = torch_private.default_group()
        if isinstance(world, TracedGroup):
            known = world.book.info.ranks
            return tuple(known[rank] for rank in ranks if 0 <= rank < len(known))
        if world is None and len(ranks) == 1:
            return (self.recorder.rank,)
        # The user may have numbered the ranks in another way, but not left one out.
        is_everybody = world is None and len(ranks) == self.world_size
        return tuple(range(self.world_size)) if is_everybody else ()

    def _refuse_alone(self, name: str, members: tuple[int, ...]) -> None:
        world = torch_private.default_group()
        if isinstance(world, TracedGroup) and _is_counted(name):
            members = world.book.info.ranks  # those that are no members count it, too
        try:
            op = "init_process_group" if world is None else "new_group"
            callback_rules.refuse(self.recorder, op, members or range(self.world_size))
            if world is not None and _is_counted(name):
                callback_rules.refuse_in_part(self.recorder, op, members)
        except BaseException:
            self._give_back(name)
            raise

    def _give_back(self, name: str) -> None:
        """The next group must have the same name on all ranks, also on those not here."""
        if _is_counted(name):
            torch_private.set_group_count(torch_private.group_count() - 1)

    def adopt_split(self, stock: Any) -> Any:
        """Put a traced group around one that ``split_group`` has made."""
        if stock is None or isinstance(stock, TracedGroup) or self.recorder.is_child:
            return stock
        backend, store = torch_private.registered(stock)
        name = stock.group_name
        roster = MemberList(store, f"nbddp/{name}", stock.rank(), stock.size())
        roster.enter(self._pool, self.recorder.rank)
        self.patience.wait(store, roster.keys, None)
        members = roster.read(self._pool)
        if members is None:
            return stock
        arguments = {"backend": backend, "timeout": None, "group_desc": stock.group_desc}
        group = self._wrap(stock, name, members, arguments)
        torch_private.exchange_registered(stock, group, name)
        return group

    def make_inner(self, arguments: dict[str, Any], name: str, store: Any) -> tuple[Any, list[Any]]:
        """A stock group like the one that these arguments made, that torch knows nothing of.

        Gloo waits in C++ for members that have died meanwhile: it is left there when `abort` ends
        the attempt, and the next one has another name. Raises what ended it.
        """
        original = self.original
        assert original is not None  # noqa: S101 - see install
        wanted = {**arguments, "group_name": name, "store": store, "pg_tag": None}

        def make() -> tuple[Any, list[Any]]:
            stock, _, found = self._make(original, wanted)
            torch_private.forget_registered(stock, name)
            return stock, found

        # Of other backends it matters which thread makes them: CUDA has a device for each.
        return self.patience.run_beside(make) if str(wanted["backend"]) == "gloo" else make()

    def _make(
        self, original: Callable[..., Any], arguments: dict[str, Any]
    ) -> tuple[Any, Any, list[sockets.Socket]]:
        with self.connecting_others() as before:
            stock, store = original(**arguments)
        return stock, store, sorted(sockets.tcp_sockets() - before)

    @contextmanager
    def connecting_others(self) -> Iterator[set[sockets.Socket]]:
        """Within this block C++ connects this rank with others: `abort` ends that.

        Gives the sockets that were there before. Raises what ended it.
        """
        before = sockets.tcp_sockets()
        self.connecting = before
        try:
            yield before
        except RuntimeError as error:
            if self.patience.ended is not None:
                raise self.patience.ended() from error
            raise
        finally:
            if self.connecting is before:  # and not that of a later attempt
                self.connecting = None

    def _key(self, name: str, ranks: list[int]) -> str:
        """Where the members meet in a store that only ranks of this pool use.

        A rank that came in an earlier cell, and was freed, is not here any more.
        """
        run_id = self.recorder.run_id
        if self._run_id != run_id:
            self._run_id = run_id
            self._made.clear()
        members = zlib.crc32(repr(ranks).encode())
        return f"nbddp/{name}/{run_id}/{members:08x}/{self._made[name, tuple(ranks)]}"

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
        info = GroupInfo(
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
        info = GroupInfo(
            pg_id=f"{name}:{members.identity}",
            name=name,
            desc=str(arguments.get("group_desc") or ""),
            ranks=members.ranks,
            backend=str(arguments["backend"]),
            timeout_ms=int(timeout.total_seconds() * 1000) if timeout is not None else 0,
        )
        return self.wrap(stock, GroupCounters(info), arguments)

    def wrap(self, stock: Any, book: GroupCounters, arguments: dict[str, Any]) -> TracedGroup:
        """A traced group around a stock one; torch does not know it yet."""
        group = TracedGroup(stock, book, self.recorder)
        group.creation = {**arguments, "store": None}
        group.setGroupName(book.info.name)
        group.forget = self._forget
        with self._lock:
            self.groups[book.info.pg_id] = group
            self.recorder.books[book.info.pg_id] = book
        return group

    def _forget(self, group: TracedGroup) -> None:
        """The user has destroyed it."""
        with self._lock:
            self.groups.pop(group.book.info.pg_id, None)
            self.recorder.books.pop(group.book.info.pg_id, None)
        self.recorder.board.forget(group.book.info.pg_id)
        torch_private.forget_meshes()

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Stands before autograd's engine: what C++ raises when a group was freed is not ours."""

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                _break_unfinished()
                if not isinstance(error, RuntimeError):
                    raise
                shown = futures.as_raised(error)
                ended = self.ended_now() or failure_cause.lost(error)
                try:
                    if ended is not None and type(error) is not type(ended):
                        raise ended from shown
                    if shown is not error:
                        raise shown from None
                    raise
                finally:
                    del ended, shown  # see `works.TracedWork.wait`

        return run

    def ended_now(self) -> BaseException | None:
        """What to raise if a group was freed and is not yet re-formed."""
        for group in list(self.groups.values()):
            if group.book.ended is not None:
                return group.book.ended()
        return None


def _break_unfinished() -> None:
    """Have the groups formed again whose DDP modules a failed backward has left in the middle.

    At the end of the cell, on all ranks: modules that begin anew rebuild their buckets together.
    """
    _break(torch_private.groups_of_unfinished())


def break_torn(*, has_failed: bool) -> None:
    """At the end of a cell: the same for what is sharded, which a forward may have left, too."""
    _break(torch_private.groups_of_torn(has_failed=has_failed))


def _break(groups: list[Any]) -> None:
    for group in groups:
        if isinstance(group, TracedGroup):
            group.book.is_broken = True


def _is_counted(name: str) -> bool:
    """Whether torch has just given this name, by counting the groups of this process."""
    return name == str(torch_private.group_count() - 1)


def _note_timeout(group: Any, timeout: timedelta) -> None:
    if isinstance(group, TracedGroup):
        group.note_timeout(timeout)


def connects_at_once(arguments: dict[str, Any]) -> bool:
    """Whether torch returns only when all members are there."""
    is_lazy = os.environ.get(_LAZY_ENV, "0").lower() not in ("", "0", "false", "off", "no", "n")
    backend = str(arguments["backend"])
    return ("gloo" in backend or backend == "undefined") and not is_lazy
