"""The stacks of the ranks' threads, as text and HTML: ``%ddp stacks``.

Runs in: the notebook's process. Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nbddp.controller.diagnosis import (
    GroupRef,
    Predicate,
    RankVerb,
    RankView,
    in_group,
    nothing_known,
    waits_for,
)
from nbddp.notebook.render import dumped_stacks
from nbddp.notebook.render.alike import FOLDS, peers_of
from nbddp.notebook.render.html import WIDTH, clean, duration, escape, preformatted, shorten
from nbddp.wire.flight_recorder import CALLBACK_THREAD, WAITS_FOR_USER, Operation, Site, ThreadLook
from nbddp.wire.rank_set import RankSet

#: Inline style of a ``<pre>``; JupyterLab lets all of it through in untrusted notebooks.
PRE_STYLE = "margin:2px 0 8px 1.5em;padding:0;white-space:pre-wrap;font-size:90%"
_MAX_BLOCKS = 32
#: More kinds of blocks than this differ by their lines only, not by the numbers in their texts.
_MAX_NUMBERED_KINDS = 8
_MAX_THREADS = 4
_MAX_OUTSIDE_LINES = 40


@dataclass(frozen=True)
class _Block:
    """The activity of one rank; equal blocks of several ranks are shown once."""

    doing: Predicate
    lines: tuple[str, ...]


def stacks(
    views: Mapping[int, RankView], ranks: RankSet | None = None, *, state: str = ""
) -> dict[str, str]:
    """The stacks of ranks as a MIME bundle, the innermost line first.

    Args:
        views: the probed state of each rank.
        ranks: the ranks to show; None: all.
        state: words behind the names of ranks: `` is busy``.
    """
    blocks = {rank: _block(view) for rank, view in views.items() if ranks is None or rank in ranks}
    exact = blocks
    for fold in FOLDS:
        blocks = {
            rank: (replace(block, doing=fold(block.doing, rank)), waits_ns)
            for rank, (block, waits_ns) in exact.items()
        }
        if len({block for block, _ in blocks.values()}) <= _MAX_NUMBERED_KINDS:
            break
    ranks_by_block: dict[_Block, list[int]] = {}
    since_ns: dict[_Block, int] = {}
    for rank, (block, waits_ns) in sorted(blocks.items(), key=lambda pair: pair[0]):
        ranks_by_block.setdefault(block, []).append(rank)
        since_ns[block] = max(since_ns.get(block, 0), waits_ns)
    entries = []
    for block, block_ranks in sorted(ranks_by_block.items(), key=lambda pair: pair[1]):
        doing = {rank: exact[rank][0].doing for rank in block_ranks}
        is_folded = len(block_ranks) > 1 and fold is FOLDS[-1]
        predicate = block.doing if len(set(doing.values())) > 1 else doing[block_ranks[0]]
        has_duration = bool(since_ns[block])
        text = predicate.describe(len(block_ranks), has_duration=has_duration)
        text += peers_of(doing) if is_folded else ""
        since = f" for {duration(since_ns[block])}" if since_ns[block] else ""
        entries.append(
            (f"{RankSet.of(block_ranks).describe()}{state}", f"{text}{since}", block.lines)
        )
    rest = len(entries) - _MAX_BLOCKS
    entries = entries[:_MAX_BLOCKS]
    more = f"and {rest} more kinds of stacks; %ddp stacks -r RANKS shows them" if rest > 0 else ""
    plain = [
        "\n".join([f"{rank_text}: {doing}", *(shorten(f"    {line}", WIDTH) for line in lines)])
        for rank_text, doing, lines in entries
    ]
    html = [
        f"<div><b>{escape(rank_text)}</b>: {escape(doing)}</div>"
        + (preformatted(escape("\n".join(lines)), PRE_STYLE) if lines else "")
        for rank_text, doing, lines in entries
    ]
    if more:
        plain.append(more)
        html.append(f"<div>{escape(more)}</div>")
    return {
        "text/plain": clean("\n".join(plain)) or "no ranks",
        "text/html": f"<div>{''.join(html) or 'no ranks'}</div>",
    }


def stack_lines(stack: Sequence[Site]) -> list[str]:
    """``cell [4], line 5  dist.all_reduce(x)``, aligned."""
    width = max((len(str(site)) for site in stack), default=0)
    return [f"{site!s:<{width}}  {site.source}".rstrip() for site in stack]


def _block(view: RankView) -> tuple[_Block, int]:
    """The activity of a rank, and for how many nanoseconds its main thread has waited."""
    if view.look is None:
        return _block_from_outside(view), 0
    look = view.look
    operations = {operation.record_id: operation for operation in look.operations}
    groups = {each.pg_id: GroupRef.of(each) for each in look.groups}
    main = look.main
    lines: list[str] = []
    since_ns = 0
    if look.activity == "reforming":
        doing = Predicate(RankVerb.MAKES_GROUPS)
    elif view.state == "raised":
        doing = _verbatim(shorten(view.raise_phrase, WIDTH // 2))
        lines += stack_lines([view.error.site] if view.error and view.error.site else [])
    elif main is None or (look.activity == "idle" and main.wait is None):
        has_finished = view.state == "finished"
        doing = Predicate(RankVerb.HAS_FINISHED) if has_finished else _verbatim("no cell runs")
    else:
        doing = _thread_predicate(main, operations, groups)
        if look.activity == "callback":
            doing = _verbatim(f"in {CALLBACK_THREAD}, {doing}")
        lines += stack_lines(main.stack)
        if main.wait is not None:
            since_ns = max(0, look.time_ns - main.wait.since_ns)
    others = [thread for thread in look.threads if not thread.is_main and not thread.is_dormant]
    for thread in others[:_MAX_THREADS]:
        lines.append(f"thread {thread.name!r}: {_thread_predicate(thread, operations, groups)}")
        lines += [f"    {line}" for line in stack_lines(thread.stack)]
    if len(others) > _MAX_THREADS:
        lines.append(f"and {len(others) - _MAX_THREADS} more threads")
    return _Block(doing, tuple(lines)), since_ns


def _block_from_outside(view: RankView) -> _Block:
    """The block of a rank that did not answer: it is gone, holds the GIL, or is stopped."""
    if view.state == "dead":
        exited = _verbatim(f"exited: {view.exit_text}" if view.exit_text else "exited")
        is_lost = view.exit_phrase.was_lost
        return _Block(Predicate.of_end(view.exit_phrase) if is_lost else exited, ())
    if view.unheard:
        return _Block(Predicate(RankVerb.NONE, "did not answer", nothing_known(view)), ())
    if view.state == "starting":
        return _Block(Predicate(RankVerb.IS, " being started"), ())
    origin = "did not answer; seen from outside" if view.state == "silent" else "seen from outside"
    lines = dumped_stacks.user_lines(view.stack_text)
    if lines is None:  # native frames
        lines = view.stack_text.rstrip().splitlines()
    elif not lines:
        return _Block(_verbatim(f"{origin}: no cell runs"), ())
    if len(lines) > _MAX_OUTSIDE_LINES:
        lines = [*lines[:_MAX_OUTSIDE_LINES], f"and {len(lines) - _MAX_OUTSIDE_LINES} more lines"]
    if not lines:
        return _Block(_NO_STACK, ())
    return _Block(_verbatim(origin), tuple(lines))


def _verbatim(text: str) -> Predicate:
    """A predicate that reads the same for one rank and for several."""
    return Predicate(RankVerb.NONE, text)


_NO_STACK = Predicate(
    RankVerb.NONE,
    "did not answer",
    (
        ", and has no Python stack: its process does not run",
        ", and have no Python stack: their processes do not run",
    ),
)


def _thread_predicate(
    thread: ThreadLook, operations: Mapping[int, Operation], groups: Mapping[str, GroupRef]
) -> Predicate:
    """The same words as in the rows of a card."""
    if thread.wait is None and thread.innermost in WAITS_FOR_USER:
        return Predicate(RankVerb.IS, f" {WAITS_FOR_USER[thread.innermost]}")
    if thread.wait is None:
        is_named = thread.innermost and not thread.innermost.startswith("<")
        return Predicate(RankVerb.RUNS, f" {thread.innermost}()" if is_named else " Python code")
    known = [operations[number] for number in thread.wait.record_ids if number in operations]

    def name(operation: Operation, peer: str) -> str:
        label = operation.label(has_call=False, peer=peer)
        return in_group(label, operation, groups.get(operation.pg_id))

    return waits_for(known, name, needs_all=thread.wait.kind == "operation")
