"""Rejects a collective that only some members would call.

Runs in: the rank process, the calling thread. A callback of a widget runs on the rank whose widget
was touched: while a cell runs on all ranks, the others may take part, and the diagnosis
sees it if they do not; between cells no other rank would. Tab and Shift-Tab ask one rank, and
`pull` asks the ranks that the user has chosen; members that are all asked may call a collective
together. `vars` and `diff` ask the classes of values for their parts, and another rank may have a
value of another class there. A rank that has exited, and is not replaced (``on_death=keep``), makes
no calls any more.
"""

import time
import warnings
from collections.abc import Iterable
from functools import partial

from nbddp.errors import CollectiveRefusedError
from nbddp.rank.backoff import pause_s
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.recording.recorder import Recorder
from nbddp.rank.user_code_context import Question
from nbddp.wire.flight_recorder import Signature
from nbddp.wire.rank_set import RankSet

#: Calls that wait for other ranks, and for which `await_members` cannot wait.
_NEVER_IN_PULLS = ("send", "recv", "monitored_barrier")


def end_groups_of_dead(recorder: Recorder, dead: Iterable[int]) -> None:
    """Make groups with a member of ``dead`` refuse all operations, until they are rebuilt."""
    for counters in recorder.counters_by_group.values():
        exited = RankSet.of(set(dead).intersection(counters.ranks))
        if exited:
            counters.is_broken = True
            counters.ended = partial(_exited_error, exited)


def pull(recorder: Recorder) -> Question | None:
    """Return the query for whose expression this code works, on all ranks; None: for none."""
    question = recorder.callbacks.question
    return question if question is not None and question.kind == "pull" else None


def await_members(recorder: Recorder, counters: GroupCounters, question: Question, op: str) -> None:
    """Wait until all members call this collective of an expression, before data is sent.

    The waits of an expression are not diagnosed, and nobody would free the rank. Members on other
    machines are not waited for, because their records cannot be read here.

    Args:
        recorder: of this rank.
        counters: of the group; the collective has been counted.
        question: the query for whose expression it is called.
        op: its name.

    Raises:
        CollectiveRefusedError: a member has sent its value, and did not call the collective.
    """
    call = question.code, counters.info.pg_id, counters.seq
    recorder.writer.note_call(*call)
    readers = {rank: recorder.board.reader_of(rank) for rank in counters.ranks}
    late = {rank: r for rank, r in readers.items() if r is not None and rank != recorder.rank}
    began = time.monotonic()
    while late:
        # This comes first: a member may call it and answer between two looks.
        answered = {rank for rank, reader in late.items() if reader.answered == question.code}
        late = {rank: r for rank, r in late.items() if not r.has_called(*call)}
        missing = RankSet.of(answered.intersection(late))
        if missing:
            raise CollectiveRefusedError(
                f"it calls {op}, which {missing.describe()} did not call; nothing was sent. "
                "Next: call it on all ranks of the group"
            )
        if counters.ended is not None:
            raise counters.ended()
        if late:
            time.sleep(pause_s(time.monotonic() - began))


def _exited_error(exited: RankSet) -> CollectiveRefusedError:
    has, its, it, fresh = (
        ("has", "its", "it", "a fresh process")
        if len(exited) == 1
        else ("have", "their", "them", "fresh processes")
    )
    return CollectiveRefusedError(
        f"{exited.describe()} {has} exited, and no operation of a group with {it} can complete\n"
        "  nothing was sent; every variable is kept\n"
        f"  next: %ddp restart -r {exited} puts {fresh} in {its} place"
    )


def refuse_in_part(recorder: Recorder, op: str, callers: Iterable[int]) -> None:
    """Raise if the cell does not run on all of these ranks, which have to call ``op``.

    Torch names groups by a counter: a rank that does not call ``op`` gives the next group another
    name than the others, and waits for them forever.

    Raises:
        CollectiveRefusedError: some ranks would not call ``op``.
    """
    here = recorder.cell_ranks
    others = RankSet.of(set(callers).difference(here)) if here else RankSet()
    if not others or recorder.is_child:
        return
    raise CollectiveRefusedError(
        f"rank {recorder.rank} called {op}, which all ranks of the default group have to call, "
        f"members or not; this cell runs on {RankSet.of(here).describe()} only\n"
        f"  {others.describe()} would count one group less, and every later group would have "
        "different names\n"
        "  nothing was sent; every variable is kept\n"
        f"  next: call {op} in a cell that all ranks run (%%ddp without -r), or with "
        "use_local_synchronization=True"
    )


def refuse(recorder: Recorder, op: str, members: Iterable[int]) -> None:
    """Raise if not all members run the code that calls ``op``.

    Call this before the operation is recorded, because the other members have not called it.

    Raises:
        CollectiveRefusedError: ``op`` would wait forever.
    """
    if recorder.is_child:
        return
    question = recorder.callbacks.question
    if question is None and (recorder.run_id or not recorder.callbacks.is_in_callback):
        return
    here = RankSet.of([recorder.rank]) if question is None else question.ranks
    others = RankSet.of(set(members).difference(here))
    if not others:
        if question is not None and question.kind == "pull" and op in _NEVER_IN_PULLS:
            raise CollectiveRefusedError(
                f"it calls {op}, which could wait forever for another rank; nothing was sent. "
                "Next: call it in a %%ddp cell"
            )
        return
    if question is None:
        raise CollectiveRefusedError(
            f"rank {recorder.rank} called {op} in a widget's callback, while no cell runs\n"
            "  a callback runs on the one rank whose widget was touched: "
            f"{others.describe()} would never make this call\n"
            "  nothing was sent; every variable is kept\n"
            f"  next: set a variable in the callback, and call {op} in a %%ddp cell that all ranks "
            "run"
        )
    if question.kind == "description":
        raise CollectiveRefusedError(
            f"it calls {op} when its value is described, and {others.describe()} may have a value "
            "of another kind; nothing was sent"
        )
    if question.kind == "pull":
        raise CollectiveRefusedError(
            f"it calls {op}, which {others.describe()} would never call: only "
            f"{here.describe()} {here.verb('was', 'were')} asked; nothing was sent. "
            "Next: ask all ranks"
        )
    raise CollectiveRefusedError(
        f"rank {recorder.rank} called {op} for Tab or Shift-Tab, which ask one rank\n"
        f"  {others.describe()} would never make this call; nothing was sent"
    )


def refuse_gaps(recorder: Recorder, counters: GroupCounters, signature: Signature) -> None:
    """Raise if Gloo would send other elements than those of the tensor.

    Gloo takes as many elements as the tensor has from the first one on, as they lie in memory.
    Measured with torch 2.13: `all_reduce` of ``x[:, ::2]`` gave wrong values on all ranks, and
    `broadcast` on all but the root, without an error. NCCL refuses such tensors itself.

    Warns:
        UserWarning: mismatches are warnings (``on_mismatch=warn``).

    Raises:
        CollectiveRefusedError: mismatches are errors.
    """
    if counters.info.backend != "gloo" or recorder.on_mismatch == "off":
        return
    strides = " and ".join(map(str, signature.strides[:2]))
    fault = (
        f"{signature.op} was called with a tensor whose elements do not lie side by side in memory "
        f"(strides {strides}), as those of a slice with a step, or of expand()"
    )
    if recorder.on_mismatch == "warn":
        warnings.warn(f"{fault}: ranks get wrong values", stacklevel=3)
        return
    raise CollectiveRefusedError(
        f"{fault}\n"
        "  Gloo would send what lies between them: ranks would get wrong values\n"
        "  nothing was sent; every variable is kept\n"
        "  next: y = x.contiguous(), call it with y, and copy the result back if you need it in x"
    )
