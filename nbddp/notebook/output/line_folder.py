"""Folds equal output of several ranks into one item, and keeps the order of every rank.

Runs in: the notebook's main thread. Pure: no clock, no I/O; ``now`` comes in.

Each rank has a queue of items in the order in which it made them. The folder looks at most
`LOOK_AHEAD` items into each. Before an item is released, the folder searches the other queues for
an equal item further back; the items before that one are released first. So ``A B C`` on three
ranks and ``A odd B C`` on a fourth come out as ``[0-3] A``, ``[3] odd``, ``[0-3] B``, ``[0-3] C``.
If two ranks made the same items in different orders, the match that is further back is dropped.
"""

import sys
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Sequence
from heapq import heappop, heapreplace

#: Number of items of each rank that are compared.
LOOK_AHEAD = 64
#: When an item has waited long enough, items that came in this part of the window after it are
#: released with it, in the order of ranks: readers look for rank 0 first.
_BATCH = 2 / 3
_NEVER = float("inf")
_ALL = sys.maxsize
#: Memory of an item without its content, but with its entries in queue and index.
_ITEM_BYTES = 300


class Item:
    """One piece of a rank's output, which folds with items of other ranks that have its key.

    Attributes:
        key: None: it never folds, and is released as soon as it is first in its queue.
        arrived: time of its arrival.
        text_bytes: approximate size of its text.
        memory_bytes: approximate size of its memory.
        is_held: it stays in the queue until this changes.
    """

    __slots__ = ("arrived", "is_held", "key", "memory_bytes", "text_bytes")

    def __init__(
        self, key: Hashable, arrived: float, *, text_bytes: int = 0, memory_bytes: int = 0
    ) -> None:
        self.key = key
        self.arrived = arrived
        self.text_bytes = text_bytes
        self.memory_bytes = memory_bytes
        self.is_held = False


class LineFolder:
    """Merges the queues of several ranks.

    Promises: every item comes out of `release` once, in the order of its rank; only items with
    equal keys come out together; an item that all awaited ranks have within the look-ahead comes at
    once; no item stays longer than ``fold_s``, unless it is held, or is behind a held one, or an
    expected rank is behind: then the limit is ``expect_s``. A rank that has shown four items is
    behind the fifth item of another rank, and it is expected until an item has waited for it in
    vain.

    So items of all ranks are folded even if they are far apart in time, up to ``expect_s``, and an
    item that only some ranks show is late once.

    Args:
        ranks: ranks that run the cell.
        fold_s: seconds that an item may wait.
        expect_s: seconds that an item may wait for a rank that is behind.
    """

    def __init__(self, ranks: Iterable[int], fold_s: float, expect_s: float = 0.0) -> None:
        self._fold_s = fold_s
        self._expect_s = max(fold_s, expect_s)
        self._queue_by_rank: dict[int, deque[Item]] = {rank: deque() for rank in ranks}
        self._awaited = set(self._queue_by_rank)
        self._expected = set(self._queue_by_rank)  # ranks that let no item wait too long
        self._shown_by_rank = dict.fromkeys(self._queue_by_rank, 0)  # number of items so far
        self._count_by_rank_by_key: dict[Hashable, dict[int, int]] = {}  # within the look-ahead
        self._complete: list[Hashable] = []  # keys that all awaited ranks had; checked again
        self._ready: list[int] = []  # ranks whose first item need not wait; checked again
        self._batch: tuple[int, float, int] | None = None  # a rank, and the limits for its items
        self._no_head_before = _NEVER  # no first item of a queue arrived before this time
        self._filled_queues = 0
        self.memory_bytes = 0  #: approximate size of all items
        self.text_bytes_by_rank = dict.fromkeys(self._queue_by_rank, 0)

    def append(self, rank: int, item: Item) -> None:
        """Add the newest item of ``rank``."""
        self._shown_by_rank[rank] += 1
        self._push(rank, item)

    def _push(self, rank: int, item: Item) -> None:
        queue = self._queue_by_rank[rank]
        queue.append(item)
        self._account(rank, item, 1)
        if len(queue) <= LOOK_AHEAD:
            self._enter(rank, item)
        if len(queue) == 1:
            self.wake(rank)

    def insert_before_last(self, rank: int, item: Item) -> None:
        """Add an item before the last one of ``rank``, which is held."""
        held = self._queue_by_rank[rank].pop()
        self._account(rank, held, -1)
        self.append(rank, item)
        self._push(rank, held)

    def prepend(self, rank: int, items: Sequence[Item]) -> None:
        """Add items before all others of ``rank``."""
        rest = self.drop(rank)
        for item in [*items, *rest]:
            self._push(rank, item)

    def drop(self, rank: int) -> list[Item]:
        """Remove and return all items of ``rank``."""
        queue = self._queue_by_rank[rank]
        items = list(queue)
        while queue:
            self._pop(rank)
        return items

    def items(self, rank: int) -> Iterator[Item]:
        """Iterate over the queue of ``rank``, oldest item first."""
        return iter(self._queue_by_rank[rank])

    def wake(self, rank: int) -> None:
        """Check the first item of ``rank`` again: it may be ready."""
        queue = self._queue_by_rank[rank]
        if queue and not queue[0].is_held:
            self._no_head_before = min(self._no_head_before, queue[0].arrived)
            if queue[0].key is None:
                self._ready.append(rank)

    def add_rank(self, rank: int) -> None:
        """Add a queue for a rank for which no item waits."""
        self._queue_by_rank[rank] = deque()
        self._shown_by_rank[rank] = 0
        self.text_bytes_by_rank[rank] = 0

    def stop_awaiting(self, rank: int) -> None:
        """Let items of other ranks no longer wait for equal ones of ``rank``."""
        if rank in self._awaited:
            self._awaited.remove(rank)
            self._expected.discard(rank)
            keys = self._count_by_rank_by_key
            self._complete = [key for key in keys if self._is_complete(key)]

    def is_waiting(self) -> bool:
        """Return whether an item waits for others."""
        return any(queue and not queue[0].is_held for queue in self._queue_by_rank.values())

    def deadline(self) -> float | None:
        """Return when `release` has an item, if no other comes before; None: there is none."""
        shown = self._least_shown()
        return min((self._due_at(rank, item, shown) for rank, item in self._heads()), default=None)

    def _heads(self) -> list[tuple[int, Item]]:
        """Return the first item of each rank, unless it is held."""
        return [
            (rank, queue[0])
            for rank, queue in self._queue_by_rank.items()
            if queue and not queue[0].is_held
        ]

    def _least_shown(self) -> int:
        """Return the number of items that the slowest of the expected ranks has shown."""
        return min((self._shown_by_rank[rank] for rank in self._expected), default=_ALL)

    def _due_at(self, rank: int, item: Item, shown: int) -> float:
        """Return the time at which the first item of a rank must be released."""
        return item.arrived + (self._fold_s if self._number(rank) <= shown else self._expect_s)

    def _number(self, rank: int) -> int:
        """Return the number of the first waiting item among all items of ``rank``, from 1."""
        return self._shown_by_rank[rank] - len(self._queue_by_rank[rank]) + 1

    def release(
        self, now: float, *, everything: bool = False
    ) -> Iterator[tuple[tuple[int, ...], tuple[Item, ...]]]:
        """Yield ranks, and their items with one key that need not, or may not, wait any longer.

        The caller may change the folder between two items.

        Args:
            now: monotonic time in seconds.
            everything: whether to release all items that are not held.
        """
        self._batch = None
        while (rank := self._due(now, everything)) is not None:
            yield self._take(self._first(rank))

    def drain(self) -> Iterator[tuple[tuple[int, ...], tuple[Item, ...]]]:
        """Yield what `release` yields, for all items, in an order that depends on keys only.

        The ranks take turns. An item that all of them show begins a new round, so that ranks which
        show a different number of items in between stay side by side. No item may be held.
        """
        turns = dict.fromkeys(self._queue_by_rank, 0)
        order = [
            (0, rank) for rank in sorted(self._queue_by_rank)
        ]  # a heap; its turns may be too low
        while order:
            turn, rank = order[0]
            if not self._queue_by_rank[rank]:
                heappop(order)
            elif turn < turns[rank]:
                heapreplace(order, (turns[rank], rank))
            else:
                filled = self._filled_queues
                ranks, items = self._take(self._first(rank))
                if len(ranks) == filled:
                    turns = dict.fromkeys(turns, 0)
                    order = [(0, rank) for rank in sorted(turns) if self._queue_by_rank[rank]]
                else:
                    turns.update({rank: turns[rank] + 1 for rank in ranks})
                yield ranks, items

    def _due(self, now: float, everything: bool) -> int | None:
        """Return a rank whose first item must be released: it or a later one may not wait."""
        while self._ready:
            rank = self._ready[-1]
            queue = self._queue_by_rank[rank]
            if queue and queue[0].key is None and not queue[0].is_held:
                return rank
            self._ready.pop()
        if self._batch is not None:  # it continues with this rank: lower ranks are done
            rank, until, shown = self._batch
            queue = self._queue_by_rank[rank]
            if queue and not queue[0].is_held and self._goes(rank, queue[0], until, shown):
                return rank
            self._batch = None
        while self._complete and self._awaited:
            key = self._complete[-1]
            if self._is_complete(key):
                return min(self._count_by_rank_by_key[key])
            self._complete.pop()
        is_over = everything or not self._awaited
        if not is_over and now < self._no_head_before + self._fold_s:
            return None
        heads, shown = self._heads(), _ALL if is_over else self._least_shown()
        self._no_head_before = min((item.arrived for _, item in heads), default=_NEVER)
        late = [
            (item.arrived, self._number(rank))
            for rank, item in heads
            if is_over or self._due_at(rank, item, shown) <= now
        ]
        if not late:
            return None
        until = min(late)[0] + self._fold_s * (1 if is_over else _BATCH)
        if not is_over:  # the wait for ranks that are behind has reached its limit
            number = max(number for _, number in late)
            self._expected = {r for r in self._expected if self._shown_by_rank[r] >= number}
            shown = self._least_shown()
        self._batch = min(r for r, item in heads if self._goes(r, item, until, shown)), until, shown
        return self._batch[0]

    def _goes(self, rank: int, item: Item, until: float, shown: int) -> bool:
        """Return whether the first item of a rank is released with one that may not wait."""
        return item.arrived <= until and self._number(rank) <= shown

    def _first(self, rank: int) -> int:
        """Return the rank whose first item must come before the first item of ``rank``.

        An item waits for the items before its equal item on another rank. A cycle of such waits is
        broken where the equal item is furthest back.
        """
        chain: list[tuple[Hashable, int, int]] = []  # key, rank that has it first, rank behind
        while True:
            key = self._queue_by_rank[rank][0].key
            if any(key == seen for seen, _, _ in chain):
                while chain[0][0] != key:
                    del chain[0]
                return max(chain, key=lambda link: self._depth(link[2], link[0]))[1]
            behind = self._rank_behind(key)
            if behind is None:
                return rank
            chain.append((key, rank, behind))
            rank = behind

    def _rank_behind(self, key: Hashable) -> int | None:
        """Return the lowest rank that has ``key`` within the look-ahead, but not first."""
        ranks = self._count_by_rank_by_key.get(key, ())
        return min((r for r in ranks if self._queue_by_rank[r][0].key != key), default=None)

    def _depth(self, rank: int, key: Hashable) -> int:
        return next(i for i, item in enumerate(self._queue_by_rank[rank]) if item.key == key)

    def _take(self, rank: int) -> tuple[tuple[int, ...], tuple[Item, ...]]:
        item = self._queue_by_rank[rank][0]
        ranks: tuple[int, ...] = (rank,)
        if item.key is not None:
            having = self._count_by_rank_by_key[item.key]
            if len(having) > 1:
                first = (r for r in having if self._queue_by_rank[r][0].key == item.key)
                ranks = tuple(sorted(first))
        return ranks, tuple([self._pop(popped) for popped in ranks])

    def _pop(self, rank: int) -> Item:
        queue = self._queue_by_rank[rank]
        item = queue.popleft()
        self._account(rank, item, -1)
        key = item.key
        if key is not None:
            count_by_rank = self._count_by_rank_by_key[key]
            count_by_rank[rank] -= 1
            if not count_by_rank[rank]:
                del count_by_rank[rank]
                if not count_by_rank:
                    del self._count_by_rank_by_key[key]
        if len(queue) >= LOOK_AHEAD:
            self._enter(rank, queue[LOOK_AHEAD - 1])
        if queue and queue[0].key is None:
            self.wake(rank)
        return item

    def _account(self, rank: int, item: Item, sign: int) -> None:
        if len(self._queue_by_rank[rank]) == (sign > 0):
            self._filled_queues += sign
        self.text_bytes_by_rank[rank] += sign * item.text_bytes
        self.memory_bytes += sign * (_ITEM_BYTES + item.memory_bytes)

    def _enter(self, rank: int, item: Item) -> None:
        """Index ``item``, which is now within the look-ahead."""
        if item.key is None:
            return
        count_by_rank = self._count_by_rank_by_key.setdefault(item.key, {})
        count_by_rank[rank] = count_by_rank.get(rank, 0) + 1
        if self._is_complete(item.key):
            self._complete.append(item.key)

    def _is_complete(self, key: Hashable) -> bool:
        """Return whether ``key`` waits for no rank.

        An item of the last awaited rank alone may wait beside items that other ranks left: so the
        end of a short cell comes out in the order of ranks, not in that of their last messages.
        """
        ranks = self._count_by_rank_by_key.get(key, {}).keys()
        if not ranks or len(ranks) < len(self._awaited) or not self._awaited <= ranks:
            return False
        return len(ranks) > 1 or self._filled_queues == 1
