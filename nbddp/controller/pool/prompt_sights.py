"""The facts that the prompt for all ranks shows, and what it does with all of them.

Runs in: the thread that waits for the cell.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nbddp.controller.diagnosis import PerRank
from nbddp.controller.hub import HubThread, Run
from nbddp.controller.pool.view_protocol import CellView
from nbddp.controller.prompts import Free, Sight, typed_at
from nbddp.controller.state import ChangedAtPrompt, FreeRequested
from nbddp.controller.values import Descriptions, PromptExchange, diff_values
from nbddp.errors import NbddpError, PoolBrokenError
from nbddp.wire.messages import InputRequest
from nbddp.wire.rank_set import Rank, RankSet, ranks_by
from nbddp.wire.step_replies import StepReply, StepVerb

if TYPE_CHECKING:
    from nbddp.controller.pool.pool import Pool


#: Magics do not run while a cell waits at its prompt.
_NEXT = "`print dir()` lists the names of the line that a rank is at"
#: The commands after which a cell has done, perhaps, other than its code says.
_CHANGES = frozenset({StepVerb.RUN, StepVerb.RETRY, StepVerb.SKIP, StepVerb.DEBUG})


def places(pool: "Pool") -> Mapping[Rank, PerRank]:
    """Return what each rank does now; empty: the pool was stopped meanwhile."""
    try:
        return pool.diagnose().ranks
    except PoolBrokenError:
        return {}


def last_numbers(pool: "Pool") -> Mapping[Rank, Mapping[str, int]]:
    """Return the number of the last collective of each group; empty: the pool was stopped."""
    try:
        looks = {rank: view.look for rank, view in pool.survey().views.items()}
    except PoolBrokenError:
        return {}
    return {
        rank: {group.pg_id: group.collective_seq_id for group in look.groups}
        for rank, look in looks.items()
        if look is not None
    }


def show(pool: "Pool", view: CellView, sight: Sight) -> None:
    """Show facts in the view of a cell; nothing if the pool was stopped meanwhile."""
    with suppress(PoolBrokenError):
        if sight is Sight.TRACE:
            view.show_trace(pool.trace_rows())
        else:
            view.show_waits(pool.observe())


def free(hub: HubThread, run: Run, wanted: Free) -> None:
    """Free ranks that are held by a deadlock."""
    hub.post(FreeRequested(run.run_id, wanted.is_last))


def note_replies(
    pool: "Pool", hub: HubThread, run: Run, replies: Sequence[tuple[InputRequest, StepReply | str]]
) -> None:
    """Note the commands that change what the cell does: another catch-up cannot repeat them."""
    verbs = {reply.verb for _, reply in replies if isinstance(reply, StepReply)}
    texts = typed_at(replies)
    if verbs & _CHANGES or texts:
        pool.history.note_change()
    if StepVerb.SKIP in verbs:  # it goes to all of the ranks
        _leave_out(hub, run, [request for request, _ in replies])
    for text in texts:
        hub.post(ChangedAtPrompt(run.run_id, text, is_skip=False))


def _leave_out(hub: HubThread, run: Run, requests: Sequence[InputRequest]) -> None:
    """Note that stopped ranks leave out their operations: no card blames the user's code then."""
    stops = [(request.stop, request.rank) for request in requests if request.stop is not None]
    by_place = ranks_by(((stop.label(has_call=False), stop.site), rank) for stop, rank in stops)
    for (name, site), ranks in by_place.items():
        place = f", {site.place}" if site.line else ""
        text = f"{ranks.describe()} left out {name} at the prompt{place}"
        hub.post(ChangedAtPrompt(run.run_id, text, is_skip=True))


def compare(exchange: PromptExchange, view: CellView, expression: str, ranks: RankSet) -> None:
    """Show where a value differs between ranks at their prompts, or why it cannot be compared."""
    questions = Descriptions(exchange, ranks, f"could not compare {expression!r}")
    try:
        view.show_difference(diff_values(questions, expression, ranks, _NEXT))
    except NbddpError as error:
        view.tell(str(error))
