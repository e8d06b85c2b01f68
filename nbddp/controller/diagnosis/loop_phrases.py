"""Puts the length of a loop that is not the same on all ranks into words.

Runs in: the notebook's process. Pure.
"""

import ast

from nbddp.controller.diagnosis.code_places import unwrapped
from nbddp.controller.diagnosis.control_flow import Branch
from nbddp.controller.diagnosis.divergence import Divergence, LeftOut, names_ranks
from nbddp.controller.diagnosis.loop_lengths import LoopLength, loop_of
from nbddp.controller.diagnosis.phrases import MAX_SOURCE, describe_branch
from nbddp.controller.diagnosis.report import CodeChange
from nbddp.wire.flight_recorder import Operation, Site, cell_name, shortened
from nbddp.wire.rank_set import RankSet

#: Iterations at which ranks ended, and in which others are.
_MAX_ITERATIONS = 3
_JOIN = "`torch.distributed.algorithms.Join`"


def length_step(
    divergence: Divergence, loop: Branch, length: LoopLength, culprits: RankSet,
    change: CodeChange | None,
) -> str:  # fmt: skip
    """The next step where a loop has fewer iterations on some ranks.

    Args:
        divergence: a line in the loop.
        loop: the loop.
        length: what is known of its length.
        culprits: the ranks on which it is shorter.
        change: the change of the code that is shown with it; None: none is known.
    """
    here, iterations = divergence.site, _last_iterations(length, culprits)
    if not length.lines or change is not None:
        how = _evenly(divergence, loop, length, change)
        return (
            f"Give every rank the same number of iterations of {describe_branch(loop)}{how}"
            f"{iterations and f': {iterations}'}."
        )
    source = length.source
    cell = "" if source.position[:2] == here.position[:2] else f" of {_title(source)}"
    alike = "the same" if length.is_number else "equally long"
    join = f", or use {_JOIN}" * (".backward(" in divergence.code.source(here.line))
    line = f"line {loop.line}{cell and f' of {_title(here)}'}"
    of_loop = f": the loop of {line} is shorter on {culprits.describe()}"
    if iterations:
        of_loop = f": in the loop of {line}, {iterations}"
    return f"Make `{length.name}` {alike} on all ranks (line {source.line}{cell}){join}{of_loop}."


def sharding_step(
    divergence: Divergence, condition: Branch, waiting: RankSet, culprits: RankSet
) -> str:
    """The next step where a condition divides the iterations of a loop among the ranks, unevenly.

    Args:
        divergence: a line in the loop.
        condition: the condition.
        waiting: ranks that wait at the line.
        culprits: the ranks that have fewer iterations.
    """
    join = f", or use {_JOIN}" * (".backward(" in divergence.code.source(divergence.site.line))
    return (
        f"Let {describe_branch(condition)} give all ranks equally many iterations, for example by "
        f"a number of iterations that is a multiple of the number of ranks{join}: "
        f"{culprits.describe()} {culprits.verb('has', 'have')} fewer than {waiting.describe()}."
    )


def left_out_step(divergence: Divergence, left_out: LeftOut, operation: Operation) -> str:
    """The next step where ranks have left out a call in an iteration which they have run."""
    line, call = f"line {divergence.site.line}", _called(operation)
    at = f" at {left_out.iteration}" if left_out.iteration else ""
    ranks = left_out.ranks.describe()
    if left_out.line:
        return (
            f"Use `no_sync()` (line {left_out.line}) in the same iterations on all ranks: {ranks} "
            f"left out {call} in {line}{at}."
        )
    come = "come to" if operation.is_by_library else "call"
    step = f"Let all ranks {come} {call} in {line} in the same iterations: {ranks} left it out{at}."
    if operation.is_by_library and ".backward(" in divergence.site.source:
        step += (
            " Look there for a detached loss, a forward or backward under `no_sync()`, or "
            "parameters without a gradient."
        )
    return step


def left_out_call(divergence: Divergence, left_out: LeftOut, operation: Operation) -> str:
    """``rank 1 left out gradient averaging in line 7 at it = 2``."""
    at = f"at {left_out.iteration}" if left_out.iteration else "in an iteration of the loop"
    inside = ""
    if left_out.line:
        source = divergence.code.source(left_out.line).strip()
        inside = f", by `{shortened(source, MAX_SOURCE)}` (line {left_out.line})"
    line = f"line {divergence.site.line}"
    return f"{left_out.ranks.describe()} left out {_called(operation)} in {line} {at}{inside}"


def _called(operation: Operation) -> str:
    """``gradient averaging``, ``all_reduce``."""
    is_called = not operation.is_by_library
    return operation.signature.op if is_called else operation.in_words(0, has_call=False)


def _last_iterations(length: LoopLength, culprits: RankSet) -> str:
    """``rank 1 ended after step 2, ranks 0,2-3 are in step 3``; empty: that is not known.

    Ranks that ended in a later iteration were ahead: an earlier loop was shorter there.
    """
    last = {rank: variable.value for variable, ranks in length.last.items() for rank in ranks}
    others = [value for rank, value in last.items() if rank not in culprits]
    if any(value >= max(others, default=value) for rank, value in last.items() if rank in culprits):
        return ""
    ended, inside = [], []
    for variable, ranks in length.last.items():
        if left := RankSet.of(set(ranks) & set(culprits)):
            ended.append(f"{left.describe()} ended after {variable}")
        if there := ranks - culprits:
            inside.append(f"{there.describe()} {there.verb('is', 'are')} in {variable}")
    is_short = 0 < len(ended) <= _MAX_ITERATIONS and 0 < len(inside) <= _MAX_ITERATIONS
    return ", ".join((*ended, *inside)) if is_short else ""


def _title(site: Site) -> str:
    """``cell [3]``, ``helpers.py``."""
    return cell_name(site.cell) if site.cell else site.file.replace(chr(92), "/").rpartition("/")[2]


def _evenly(
    divergence: Divergence, loop: Branch, length: LoopLength, change: CodeChange | None
) -> str:
    """How a loop may end on all ranks together: as the change does that is shown."""
    for line in () if change is None else change.lines:
        added = line.source.strip() if line.change == "added" else ""
        if "drop_last=True" in added:
            return ", for example by drop_last=True"
        if added.startswith("with "):
            return f", or let `{added}` allow different ones"
    # `Join` stands in for no collective that the cell calls itself.
    is_in_backward = ".backward(" in divergence.code.source(divergence.site.line)
    how = ", which depends on the rank" if names_ranks(loop.source) else ""
    if length.has_own_batches:
        how = ", for example by a `batch_sampler` that is equally long on all ranks"
    elif divergence.is_over_data or change is not None or length.is_of_loader:
        number = _number_of_batches(divergence) if length.is_of_loader else "number"
        how = f", for example the smallest {number} of all ranks, by all_reduce with ReduceOp.MIN"
    elif length.decided_at is not None:
        at = length.decided_at
        of = "" if at.position[:2] == divergence.site.position[:2] else f" of {_title(at)}"
        source = shortened(at.source, MAX_SOURCE)
        how = f", which depends on the rank in line {at.line}{of}, `{source}`"
    elif loop.source.startswith("while"):
        how = ", for example by an all_reduce of its condition"
    return f"{how}{f', or use {_JOIN}' * is_in_backward}"


def _number_of_batches(divergence: Divergence) -> str:
    """```len(loader)```; ``number``: the loader has no name."""
    loop = loop_of(divergence)
    items = None if loop is None else unwrapped(loop.iter)
    return f"`len({items.id})`" if isinstance(items, ast.Name) else "number"
