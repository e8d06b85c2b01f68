"""Makes every group of this rank a traced one.

Runs in: the rank process, the thread that makes the group.

    init_process_group, new_group, DeviceMesh, FSDP2, ...
      --> torch's helper (`torch_private.hook_group_creation`)
      --> Creator.create: wait until all members are there, let torch make the stock group,
          put a `TracedGroup` around it and in its place
"""

import secrets
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

from nbddp.rank import torch_private
from nbddp.rank.collectives import alone, sockets
from nbddp.rank.collectives.group import TracedGroup, lost
from nbddp.rank.collectives.recorder import GroupBook, Recorder, in_words
from nbddp.rank.collectives.signatures import make
from nbddp.wire.observed import GroupInfo

_now = time.monotonic_ns
#: A wait for the store is done by looking: in between, interrupts and our own ends are heard. The
#: next look comes after a quarter of the time waited so far, within these limits.
_SHORTEST_S, _LONGEST_S = 0.0005, 0.05
_DEFAULT_TIMEOUT = timedelta(seconds=1800)


class Creator:
    """Makes groups; one per rank."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.groups: dict[str, TracedGroup] = {}  # by pg_id, in the order of creation
        self.original: Callable[..., Any] | None = None
        #: While C++ connects the members of a group: the sockets that were there before.
        self.connecting: set[sockets.Socket] | None = None
        #: Raised by whoever waits for the store or for other members: set by `freeing`.
        self.ended: Callable[[], BaseException] | None = None
        self._lock = threading.RLock()

    def install(self) -> bool:
        """From now on all groups are traced; False if this version of torch cannot have it."""
        self.original = torch_private.hook_group_creation(self.create, self.adopt_split)
        if self.original is None:
            return False
        torch_private.hook_batched_messages(TracedGroup)
        torch_private.hook_options()
        torch_private.hook_ddp()
        torch_private.hook_join()
        torch_private.hook_timeouts(_note_timeout)
        torch_private.hook_store_waits(self.wait_for_store)
        torch_private.hook_backward(self._backward)
        torch_private.hide_from_compiler("nbddp.")
        return True

    # --- creation ------------------------------------------------------------------------------

    def create(self, original: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Stands before torch's own helper."""
        store, ranks = arguments["store"], list(arguments["global_ranks_in_group"])
        size, group_rank = arguments["group_size"], arguments["group_rank"]
        is_member = isinstance(group_rank, int) and 0 <= group_rank < size
        name = str(arguments["group_name"])
        ranks = ranks or list(range(size))
        self._refuse_alone(name, ranks)
        if not is_member or self.recorder.is_child or str(arguments["backend"]) in ("mpi", "fake"):
            return original(**arguments)
        prefix = _pool_prefix(store)
        record = self._record_creation(name, ranks, prefix, arguments)
        try:
            token = ""
            if prefix is not None:
                with _Waiting(self.recorder, record):
                    token = self.meet(store, name, ranks, group_rank, arguments["timeout"])
            stock, stock_store, found = self._make(original, arguments, record)
            if prefix is not None:
                # Who destroyed the group at once would cut those who still connect.
                with _Waiting(self.recorder, record):
                    self._gather(
                        store, f"{self._key(name, ranks)}/made", ranks, arguments["timeout"]
                    )
        except BaseException as error:
            self._complete(record, in_words(error))
            self._give_back(name)
            raise
        self._complete(record)
        if not hasattr(stock, "_device_types") or isinstance(stock, TracedGroup):
            return stock, stock_store
        if prefix is not None:
            # Groups made from this one take their store from here.
            torch_private.mark_pool_store(stock_store, f"{prefix}/{name}")
        group = self._wrap(stock, name, ranks, token, arguments)
        group.fds = found
        torch_private.exchange_registered(stock, group, name)
        return group, stock_store

    def _refuse_alone(self, name: str, ranks: list[int]) -> None:
        world = torch_private.default_group()
        if world is not None and _is_counted(name):
            ranks = list(range(world.size()))  # those that are no members count it, too
        try:
            op = "init_process_group" if world is None else "new_group"
            alone.refuse(self.recorder, op, ranks)
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
        backend, store, ranks = torch_private.registered(stock)
        arguments = {"backend": backend, "timeout": None, "group_desc": stock.group_desc}
        group = self._wrap(stock, stock.group_name, list(ranks), "split", arguments)
        torch_private.exchange_registered(stock, group, stock.group_name)
        del store
        return group

    def make_inner(self, arguments: dict[str, Any], name: str, store: Any) -> tuple[Any, list[Any]]:
        """A stock group like the one that these arguments made, that torch knows nothing of."""
        assert self.original is not None  # noqa: S101 - see install
        wanted = {**arguments, "group_name": name, "store": store, "pg_tag": None}
        stock, _, found = self._make(self.original, wanted, 0)
        torch_private.forget_registered(stock, name)
        return stock, found

    def _make(
        self, original: Callable[..., Any], arguments: dict[str, Any], record: int
    ) -> tuple[Any, Any, list[sockets.Socket]]:
        before = sockets.tcp_sockets()
        self.connecting = before
        try:
            if record:
                with _Waiting(self.recorder, record):
                    stock, store = original(**arguments)
            else:
                stock, store = original(**arguments)
        except RuntimeError as error:
            if self.ended is not None:
                raise self.ended() from error
            raise
        finally:
            self.connecting = None
        return stock, store, sorted(sockets.tcp_sockets() - before)

    def meet(self, store: Any, name: str, ranks: list[int], group_rank: int, timeout: Any) -> str:
        """Wait until all members are there; gives a token that is the same for all.

        After this nobody has to wait in C++ for a member that never comes.
        """
        base = self._key(name, ranks)
        if group_rank == 0:
            store.set(f"{base}/token", secrets.token_hex(3))
        self._gather(store, f"{base}/arrived", ranks, timeout)
        return bytes(store.get(f"{base}/token")).decode()

    def _key(self, name: str, ranks: list[int]) -> str:
        # Who came in an earlier cell, and was freed, is not here any more.
        members = zlib.crc32(repr(ranks).encode())
        return f"nbddp/{name}/{self.recorder.run_id}/{members:08x}"

    def _gather(self, store: Any, key: str, ranks: list[int], timeout: Any) -> None:
        """Wait until all members have come to the same place."""
        if store.add(key, 1) == len(ranks):
            store.set(f"{key}-all", "1")
        try:
            self.wait_patiently(store, [f"{key}-all"], timeout)
        except BaseException:
            with suppress(RuntimeError):  # the store's connection may be what failed
                store.add(key, -1)
            raise

    def _record_creation(
        self, name: str, ranks: list[int], prefix: str | None, arguments: dict[str, Any]
    ) -> int:
        op = "new_group" if arguments["global_ranks_in_group"] else "init_process_group"
        members = tuple(map(str, ranks))
        recorder = self.recorder
        key = ("creation", op, name, members, prefix)
        known = recorder.signatures.find(key, lambda: make("creation", op, keys=members))
        info = GroupInfo(
            pg_id=f"{name}@{prefix or ''}@{zlib.crc32(repr(ranks).encode()):08x}",
            name=name,
            desc=str(arguments.get("group_desc") or ""),
            ranks=tuple(ranks),
            backend=str(arguments["backend"]),
        )
        timeout = arguments.get("timeout")
        milliseconds = int(timeout.total_seconds() * 1000) if timeout is not None else 0
        return recorder.other(known, GroupBook(info), milliseconds)

    def _complete(self, record: int, error: str = "") -> None:
        self.recorder.writer.complete(record, _now(), 0, error)

    def _wrap(
        self, stock: Any, name: str, ranks: list[int], token: str, arguments: dict[str, Any]
    ) -> TracedGroup:
        timeout = arguments.get("timeout")
        info = GroupInfo(
            pg_id=f"{name}:{token or f'{zlib.crc32(repr(ranks).encode()):08x}'}",
            name=name,
            desc=str(arguments.get("group_desc") or ""),
            ranks=tuple(ranks),
            backend=str(arguments["backend"]),
            timeout_ms=int(timeout.total_seconds() * 1000) if timeout is not None else 0,
        )
        return self.wrap(stock, GroupBook(info), arguments)

    def wrap(self, stock: Any, book: GroupBook, arguments: dict[str, Any]) -> TracedGroup:
        """A traced group around a stock one; torch does not know it yet."""
        group = TracedGroup(stock, book, self.recorder)
        group.creation = arguments
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

    # --- waits outside of groups ---------------------------------------------------------------

    def wait_for_store(
        self, original: Callable[..., Any], store: Any, keys: list[str], timeout: Any
    ) -> None:
        """Stands before `Store.wait`, and before `Store.get` of a key that is not there."""
        if self.recorder.is_child:
            original(store, keys) if timeout is None else original(store, keys, timeout)
            return
        try:
            if store.check(keys):
                return
        except RuntimeError:
            pass  # a store that cannot look: its wait will tell
        recorder = self.recorder
        known = recorder.signatures.find(
            ("store", tuple(keys)), lambda: make("store", "store.wait", keys=tuple(keys))
        )
        total = timeout or _timeout_of(store)
        record = recorder.other(known, None, int(total.total_seconds() * 1000))
        try:
            with _Waiting(recorder, record):
                self.wait_patiently(store, keys, total, original)
        except BaseException as error:
            self._complete(record, in_words(error))
            raise
        self._complete(record)

    def wait_patiently(
        self, store: Any, keys: list[str], timeout: Any, original: Callable[..., Any] | None = None
    ) -> None:
        """`Store.wait` that hears interrupts, and that `freeing` can end.

        Short waits in C++ would do too, but torch warns of each that runs out.
        """
        wait = original or torch_private.original_store_wait
        total_s = (timeout or _DEFAULT_TIMEOUT).total_seconds()
        began = time.monotonic()
        while True:
            if self.ended is not None:
                raise self.ended()
            if store.check(keys):
                return
            waited_s = time.monotonic() - began
            if waited_s >= total_s:
                break
            pause_s = min(max(waited_s / 4, _SHORTEST_S), _LONGEST_S, total_s - waited_s)
            time.sleep(pause_s)
        try:
            wait(store, keys, timedelta(milliseconds=1))  # raises what torch raises
        except RuntimeError as error:
            text = str(error).replace("after 1ms", f"after {total_s * 1000:.0f}ms")
            raise type(error)(text) from None

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Stands before autograd's engine: what C++ raises when a group was freed is not ours."""

        def run(*args: Any, **kwargs: Any) -> Any:
            try:
                return original(*args, **kwargs)
            except BaseException as error:
                _break_unfinished()
                if not isinstance(error, RuntimeError):
                    raise
                ended = self.ended_now() or lost(error)
                if ended is not None and type(error) is not type(ended):
                    raise ended from error
                raise

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


class _Waiting:
    """Notes that the calling thread waits for a record."""

    def __init__(self, recorder: Recorder, record: int) -> None:
        self._writer = recorder.writer
        self._record = record

    def __enter__(self) -> None:
        self._slot = self._writer.begin_wait(threading.get_ident(), self._record, _now())

    def __exit__(self, *_: object) -> None:
        self._writer.end_wait(self._slot)


def _is_counted(name: str) -> bool:
    """Whether torch has just given this name, by counting the groups of this process."""
    return name == str(torch_private.group_count() - 1)


def _note_timeout(group: Any, timeout: timedelta) -> None:
    if isinstance(group, TracedGroup):
        group.note_timeout(timeout)


def _pool_prefix(store: Any) -> str | None:
    """The keys' prefix if the store is, or lies above, one that leads to the pool's own."""
    found = torch_private.pool_prefix(store)
    if found is None:
        # init_process_group puts PrefixStore("default_pg", store) around what it was given.
        found = torch_private.pool_prefix(getattr(store, "underlying_store", None))
    return found


def _timeout_of(store: Any) -> timedelta:
    try:
        return timedelta(seconds=store.timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return _DEFAULT_TIMEOUT
