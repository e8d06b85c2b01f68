"""The output of a cell in an order that depends on what the ranks printed, not on when.

Runs in: the notebook's main thread. Pure: no clock, no I/O.

While a cell runs, a line is shown when it has waited long enough for equal lines of other ranks. So
a slow rank can change the order and the folding. When the cell ends, all output is there, and is
put in order again: the same program then has the same saved output. The ranks take turns, as they
mostly do while they run; the lines of a tensor or a table stay together, and fold only if all of
them are equal. An indented line stays with the line above it, unless ranks share that one and
differ in the other.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from nbddp.notebook.output import text_blocks
from nbddp.notebook.output.items import Bundle, Line, rows_of
from nbddp.notebook.output.line_folder import Item, LineFolder
from nbddp.notebook.output.shown_blocks import ShownBlocks
from nbddp.notebook.output.shows import Rich
from nbddp.notebook.widgets import WIDGET_MIME
from nbddp.wire.rank_set import RankSet

#: A cell with more output than this stays as it was shown.
_MAX_ITEMS = 4000
_MAX_BYTES = 32 * 1024 * 1024


class _Block:
    """Lines of one rank that belong together.

    Args:
        line: the first of them.
    """

    def __init__(self, line: Line) -> None:
        self.lines = [line]
        self._texts = line.text.split("\n")

    def join(self, line: Line) -> bool:
        """Add a line if it continues the block, and return whether it does."""
        if line.stream != self.lines[0].stream or not text_blocks.continues(self._texts, line.text):
            return False
        self.lines.append(line)
        self._texts += line.text.split("\n")
        return True

    @property
    def head(self) -> Hashable:
        """Equal for blocks whose first lines fold; None: the block is one whole."""
        return self.lines[0].key if text_blocks.is_paragraph(self._texts) else None

    @property
    def text(self) -> str:
        """All lines."""
        return "\n".join(self._texts)

    def whole(self) -> Line:
        """Return one line that stands for all of them."""
        first = self.lines[0]
        return first if len(self.lines) == 1 else Line(first.stream, self.text, first.arrived)


def _unshared(blocks_by_rank: Mapping[int, Sequence[_Block | Bundle]]) -> set[Hashable]:
    """Return the heads of paragraphs that differ below an equal first line."""
    texts_by_head: dict[Hashable, set[str]] = {}
    for blocks in blocks_by_rank.values():
        for block in blocks:
            if isinstance(block, _Block) and (head := block.head) is not None:
                texts_by_head.setdefault(head, set()).add(block.text)
    return {head for head, texts in texts_by_head.items() if len(texts) > 1}


def put_bundles(blocks: ShownBlocks, ranks: tuple[int, ...], items: Sequence[Item]) -> Rich:
    """Add the bundles of some ranks, and return the one that shows them."""
    bundles = [item for item in items if isinstance(item, Bundle)]
    place = bundles[0].place
    if place is not None:
        return blocks.add_displays([bundle.rich for bundle in bundles], place)
    rich = replace(bundles[0].rich, ranks=RankSet(ranks))
    blocks.add_rich(rich)
    return rich


class ItemRecord:
    """The items of each rank since its last ``clear_output``, up to a limit.

    Args:
        ranks: ranks that run the cell.
    """

    def __init__(self, ranks: Iterable[int]) -> None:
        self._items_by_rank: dict[int, list[_Block | Bundle]] = {rank: [] for rank in ranks}
        self._count = 0
        self._bytes = 0
        self._bundle_by_key: dict[Hashable, Bundle] = {}
        self._is_closed = False

    def add(self, rank: int, item: Line | Bundle) -> None:
        """Add the newest item of ``rank``."""
        if self._is_closed:
            return
        self._count += 1
        if not (isinstance(item, Bundle) and self._share(item)):
            self._bytes += item.memory_bytes
        if self._count > _MAX_ITEMS or self._bytes > _MAX_BYTES:
            self.close()
        elif isinstance(item, Bundle) and WIDGET_MIME in item.rich.data:
            self.close()  # blocks of widgets have their own order
        else:
            items = self._items_by_rank.setdefault(rank, [])
            last = items[-1] if items else None
            if isinstance(item, Bundle):
                items.append(item)
            elif not (isinstance(last, _Block) and last.join(item)):
                items.append(_Block(item))

    def _share(self, bundle: Bundle) -> bool:
        """Let equal bundles of ranks be one object: plotly's library has 5 MB on each rank."""
        if bundle.place is not None or bundle.rich.display_id:
            return False
        known = self._bundle_by_key.setdefault(bundle.key, bundle)
        if known is bundle:
            return False
        bundle.key = known.key
        bundle.rich = replace(bundle.rich, data=known.rich.data, metadata=known.rich.metadata)
        return True

    def clear(self, rank: int) -> None:
        """Forget the items of ``rank``."""
        self._items_by_rank[rank] = []

    def update(self, rich: Rich) -> None:
        """Keep the latest content of the displays with this id."""
        for item in self._bundles():
            if item.rich.display_id == rich.display_id:
                item.rich = replace(item.rich, data=rich.data, metadata=rich.metadata)

    def close(self) -> None:
        """Keep nothing: the order of the output must stay as it is."""
        self._is_closed = True
        self._items_by_rank = {}
        self._bundle_by_key = {}

    def settle(self, blocks: ShownBlocks) -> bool:
        """Add the output in its final order; return whether it is known."""
        if self._is_closed:
            return False
        folder = LineFolder(self._items_by_rank, 0.0)
        apart = _unshared(self._items_by_rank)
        for rank, items in self._items_by_rank.items():
            for item in items:
                if isinstance(item, Bundle):
                    folder.append(rank, item)
                    continue
                for line in item.lines if item.head in apart else [item.whole()]:
                    folder.append(rank, line)
        for ranks, settled in folder.drain():
            first = settled[0]
            if isinstance(first, Line):
                for shown_ranks, text in rows_of(ranks, settled):
                    blocks.add_text(shown_ranks, first.stream, text)
            elif isinstance(first, Bundle):
                put_bundles(blocks, ranks, settled)
        return True

    def _bundles(self) -> Iterator[Bundle]:
        for items in self._items_by_rank.values():
            for item in items:
                if isinstance(item, Bundle):
                    yield item
