"""Texts about the ends of processes and cells: exits, crashes, errors and their lines.

Runs in: the notebook's process. Pure.
"""

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from itertools import islice, takewhile
from pathlib import PurePath
from typing import assert_never

from nbddp import stack_text
from nbddp.controller.diagnosis import ExitPhrase
from nbddp.controller.state.actions import NotifyUser
from nbddp.controller.state.rank_state import RankInfo, RankState
from nbddp.controller.state.snapshot import PoolSnapshot
from nbddp.controller.state.stimuli import AgentExited
from nbddp.settings import ENV_PREFIX
from nbddp.wire.flight_recorder import ExceptionLine, cell_name
from nbddp.wire.message_types import (
    AgentEnd,
    AgentEndCause,
    ErrorInfo,
    ExitCause,
    ForkServerEnd,
    KillRequest,
    LostAgent,
    UnknownStatus,
)
from nbddp.wire.messages import RankExited, StoreExited
from nbddp.wire.rank_set import RankSet

_MAX_LINE = 300
_MAX_FRAMES = 6
#: `faulthandler` leaves out all frames below the hundredth.
_DEEP = re.compile(r"^  \.\.\.$", re.MULTILINE)
#: Gloo ends the process of a rank that receives more bytes than its call expects.
_UNEXPECTED_SIZE = re.compile(r"Received data size doesn't match expected size")
#: libzmq and Gloo end the process when other code has closed their descriptors.
_CLOSED_UNDER_US = re.compile(
    r"^Assertion failed: .*\(src/(signaler|epoll|poller)"
    r"|\[enforce fail at .*/?gloo/transport/tcp/loop\.cc:"
    r"|Bad file descriptor",
    re.MULTILINE,
)


#: glibc finds its lists of free memory overwritten.
_CORRUPTED = re.compile(r"(malloc|realloc|free)\(\): |corrupted size|double free or corruption")
_OF_MEMORY = ("SIGABRT", "SIGSEGV", "SIGBUS")


def describe_exit(exited: RankExited) -> tuple[str, str]:
    """Return how the process ended, with signals by name, and the likely cause.

    Returns:
        For example ``("SIGILL (signal 4)", "native code is not made for this processor")``; the
        cause is empty if it is not known.
    """
    if exited.cause is not None:
        return describe_cause(exited.cause), ""
    name = describe_code(exited.exit_code)
    if exited.exit_code >= 0:
        return name, "the cell, or a library, called os._exit() or C's exit()"
    how = f"{name} (signal {-exited.exit_code})"
    if exited.out_of_memory:
        return how, "the system ran out of memory and the kernel ended this process"
    if name in ("SIGSEGV", "SIGBUS") and _DEEP.search(exited.fault):
        return how, (
            "the stack overflowed: a function calls itself too often for the stack of the process "
            "(`ulimit -s`); sys.setrecursionlimit() cannot make that larger"
        )
    if name == "SIGABRT" and _CLOSED_UNDER_US.search(exited.last_output):
        return how, "the cell closed descriptors of files that it had not opened (os.closerange?)"
    gave_up = "native code gave up (an assertion, or an uncaught C++ exception)"
    if _CORRUPTED.search(exited.last_output):
        gave_up = (
            "native code wrote to memory that is not its own, such as that of a tensor that was "
            "resized while an operation used it"
        )
    if is_of_mismatch(exited):
        gave_up = (
            "the calls of the ranks do not match: Gloo ends a process that receives more bytes "
            "than its call expects"
        )
    killed = "the system ran out of memory, or someone ran `kill -9`"
    if exited.counts_memory_kills:
        killed = (
            "someone, or the cell, ran `kill -9`. Memory was not short: the kernel has killed no "
            "process for that"
        )
    likely = {
        "SIGKILL": killed,
        "SIGSEGV": "native code touched memory that is not its own",
        "SIGBUS": "native code touched memory that is not there; is /dev/shm full?",
        "SIGABRT": gave_up,
        "SIGFPE": "native code divided an integer by zero",
        "SIGILL": "native code is not made for this processor",
        "SIGTERM": "someone asked the process to end",
    }
    return how, likely.get(name, "")


def is_of_mismatch(exited: RankExited) -> bool:
    """Whether Gloo ended a process because the call of another rank has sent more than its own."""
    is_aborted = exited.cause is None and describe_code(exited.exit_code) == "SIGABRT"
    return is_aborted and _UNEXPECTED_SIZE.search(exited.last_output) is not None


def is_of_memory(exited: RankExited) -> bool:
    """Whether a process ended as one whose native code used memory that is not its own."""
    return exited.cause is None and describe_code(exited.exit_code) in _OF_MEMORY


def exit_phrase(exited: RankExited, alike: Sequence[RankExited] = ()) -> ExitPhrase:
    """``exited with SIGKILL (signal 9)``, ``exited, ended by ...``, ``was lost: node 1 ...``.

    Args:
        exited: the end of a rank.
        alike: those of ranks that ended in the same way, perhaps with the agents of other nodes.
    """
    if exited.cause is not None:
        begin = ":" if exited.was_lost else "exited,"
        lost = [end.cause for end in alike if isinstance(end.cause, LostAgent)]
        nodes = {each.node for each in lost if not each.never_came}
        how = describe_cause(exited.cause, nodes)
        return ExitPhrase(f"{begin} {how}", was_lost=exited.was_lost)
    if exited.exit_code >= 0:
        return ExitPhrase(f"exited with code {exited.exit_code}")
    return ExitPhrase(f"exited with {describe_exit(exited)[0]}")


def describe_code(exit_code: int) -> str:
    """``exit code 3``, or ``SIGKILL``."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return signal.Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def describe_cause(cause: ExitCause, nodes: Collection[int] = ()) -> str:
    """``the fork server ended (SIGKILL)``, ``node 1 was given up (nothing was heard of ...)``.

    Args:
        cause: of an exit.
        nodes: the nodes whose agents ended in the same way as the one of the cause, if it came.
    """
    match cause:
        case UnknownStatus():
            return "its exit status is not known"
        case ForkServerEnd(exit_code=code):
            how = "" if code is None else f" ({describe_code(code)})"
            return f"the fork server ended{how}"
        case KillRequest():
            return "%ddp restart -r"
        case LostAgent(never_came="", node=node):
            ended = sorted({node, *nodes})
            loss = _loss_of(cause, several=len(ended) > 1)
            return f"{loss.format(' and '.join(map(str, ended)))} ({_agent_end(cause.end)})"
        case LostAgent(never_came=machine, end=AgentEnd(cause="engine", text=text, advice=advice)):
            next_step = f". Next: {advice}" if advice else ""
            return f"the agent on {machine} never came: {text}{next_step}"
        case LostAgent(never_came=machine):
            return f"the agent on {machine} never came: {_agent_end(cause.end)}"
        case _:
            assert_never(cause)


def describe_agent_exit(exited: AgentExited) -> str:
    """``the agent of node 1 ended (SIGKILL)``, ``the agent on n2 never came: ssh said: ...``."""
    return describe_cause(exited.lost)


def start_lost_agent_text(exited: AgentExited) -> str:
    """Return why a start failed whose agent has ended: with its machine, and the next step."""
    lost, last = exited.lost, exited.last_output.strip()
    reason = describe_agent_exit(exited)
    if exited.host and not exited.never_came:
        how = _loss_of(lost).format(f"{lost.node} ({exited.host})")
        reason = f"{how} ({_agent_end(lost.end)}). Next: start the pool again"
    return f"{reason}: {last}" if last else reason


def _loss_of(lost: LostAgent, *, several: bool = False) -> str:
    """``node {} was given up``: what is known of the loss, with a gap for the node."""
    if not lost.is_unseen:
        return "the agents of nodes {} ended" if several else "the agent of node {} ended"
    how = how_lost(lost)
    return f"nodes {{}} were {how}" if several else f"node {{}} was {how}"


def how_lost(lost: LostAgent) -> str:
    """``lost``, as its engine says, or ``given up``: a node of whose end nothing is known."""
    return "lost" if lost.end.cause == "engine" else "given up"


def is_given_up(lost: LostAgent) -> bool:
    """Whether nobody has told the end of an agent: its connection was given up."""
    return lost.is_unseen and lost.end.cause != "engine"


def other_agents(count: int) -> str:
    """``another agent``, ``other agents``: in the places of lost ones."""
    return "another agent" if count == 1 else "other agents"


def _agent_end(end: AgentEnd) -> str:
    match end.cause:
        case "exited":
            return describe_code(end.number)
        case "signal":
            return f"it was ended by {describe_code(-end.number)}"
        case "silent":
            return f"nothing was heard of {end.text} for {end.number} s"
        case "engine":  # its advice is for a start: what to do now stands elsewhere
            return end.text.rstrip(". ")
        case _:
            return _AGENT_ENDS[end.cause].format(job=end.text)


_AGENT_ENDS: Mapping[AgentEndCause, str] = {
    "asked": "it was asked to end",
    "starter-ended": "the program that has started it has ended",
    "notebook-ended": "the notebook's process has ended",
    "notebook-lost": "it heard nothing of the notebook",
    "not-attached": "nobody attached in the time for which it was kept",
    "not-known": "its exit status is not known",
    "refused": "the notebook has refused it",
    "no-answer": "it did not answer",
    "taken-away": "SIGTERM: Slurm takes the node away, since job {job} was cancelled (scancel) or "
    "preempted",
    "time-limit": "Slurm job {job} has reached its time limit",
    "job-over": "SIGTERM: Slurm takes the node away, since job {job} has reached its time limit, "
    "or was cancelled (scancel) or preempted",
}


def describe_store_exit(exited: StoreExited) -> str:
    """``the process of the store ended (SIGKILL)``."""
    how = describe_cause(exited.cause) if exited.cause else describe_code(exited.exit_code)
    return f"the process of the store ended ({how})"


def exited_text(exited: Sequence[RankInfo], lost: Mapping[int, LostAgent]) -> str:
    """``rank 3 has exited, and ranks 0-1 were lost, since node 0 was given up``.

    Args:
        exited: ranks that have exited, or were lost.
        lost: the agents of lost nodes.
    """
    alone = RankSet.of(info.rank for info in exited if info.node not in lost)
    parts = [f"{alone.describe()} {alone.verb('has', 'have')} exited"] if alone else []
    nodes_by_loss: dict[str, list[int]] = {}
    for node in sorted({info.node for info in exited} & lost.keys()):
        nodes_by_loss.setdefault(_loss_of(lost[node]), []).append(node)
    for nodes in nodes_by_loss.values():
        ranks, first = (
            RankSet.of(info.rank for info in exited if info.node in nodes),
            lost[nodes[0]],
        )
        forms = ("was lost", "were lost") if first.is_unseen else ("has exited", "have exited")
        why = _loss_of(first, several=len(nodes) > 1).format(" and ".join(map(str, nodes)))
        parts.append(f"{ranks.describe()} {ranks.verb(*forms)}, since {why}")
    return ", and ".join(parts)


def gone_text(pool: PoolSnapshot) -> str:
    """``ranks 2-3 were lost, since node 1 was given up``; empty: no rank has exited."""
    exited = [info for info in pool.ranks if info.state is RankState.EXITED]
    return exited_text(exited, {lost.node: lost for lost in pool.lost})


def idle_exit_text(rank: int, how: str, kept: RankSet, failure: str) -> str:
    """The message about a rank that exited between cells.

    Args:
        rank: the rank.
        how: for example ``SIGKILL (signal 9)``.
        kept: the ranks that did not exit.
        failure: why it could not be replaced; empty: it was.
    """
    if failure:
        return f"rank {rank} exited ({how}) and could not be replaced: {failure}"
    others = f", those of {kept.describe()} are kept" if kept else ""
    return (
        f"rank {rank} exited ({how}) and was replaced by a fresh process: its variables are gone"
        f"{others}"
    )


def idle_exit_notices(
    how_by_rank: Mapping[int, str], kept: RankSet, failure: str
) -> list[NotifyUser]:
    """The messages about the ranks that exited between cells; see `idle_exit_text`."""
    return [
        NotifyUser(rank, idle_exit_text(rank, how, kept, failure))
        for rank, how in sorted(how_by_rank.items())
    ]


def exception_line(error: ErrorInfo) -> ExceptionLine:
    """The first line of an exception, shortened."""
    first = error.evalue.strip().partition("\n")[0][:_MAX_LINE]
    return ExceptionLine(name=error.ename, text=first, site=error.site)


def error_summary(error: ErrorInfo) -> str:
    """``ValueError: bad``."""
    return exception_line(error).summary


def meaning(exited: RankExited) -> str:
    """A signal in plain words; empty if its likely cause says as much."""
    if exited.exit_code != -signal.SIGKILL or exited.cause is not None:
        return ""
    return "the system or another program ended it at once, so Python could not clean up"


def memory_then(exited: RankExited) -> str:
    """``; 1.2 of 24.0 GB of memory were free``, if that says something about the end."""
    if exited.exit_code != -signal.SIGKILL or not exited.memory_total:
        return ""
    free, total = (size / 1e9 for size in (exited.memory_available, exited.memory_total))
    link = ", and" if exited.counts_memory_kills and not exited.out_of_memory else ";"
    return f"{link} {free:.1f} of {total:.1f} GB of memory were free"


def crash_site(fault: str, *, is_short: bool = False) -> list[str]:
    """The lines of the user's code that a fatal signal hit, from the output of `faulthandler`.

    Args:
        fault: that output.
        is_short: of a path, only the last two parts.
    """
    # Below are IPython and nbddp, above are the cell and what it called.
    of_user = takewhile(lambda frame: "/IPython/" not in frame.file, stack_text.frames(fault))
    return [
        f"{_code_name(frame, is_short=is_short)}, line {frame.line}, in {frame.function}"
        for frame in islice(of_user, _MAX_FRAMES)
    ]


def _code_name(frame: stack_text.Frame, *, is_short: bool) -> str:
    """The name of the cell or file of a frame."""
    if frame.cell is not None:
        return cell_name(frame.cell)
    parts = PurePath(frame.file).parts
    return f".../{'/'.join(parts[-2:])}" if is_short and len(parts) > 3 else frame.file


def slow_start_text(limit_s: float, waiting: str, *, has_machines: bool = False) -> str:
    """Return the reason of a failed start.

    Args:
        limit_s: its limit.
        waiting: the part of the start that was not done; empty: a restart, whose ranks did not end.
        has_machines: the nodes are machines of their own.
    """
    if not waiting:
        return f"the restart waited {limit_s:g} s for ranks to end. Next: start the pool again"
    variable = f"{ENV_PREFIX}START_TIMEOUT_S={3 * limit_s:g}"
    perhaps, step = "the machine is busy, or a slow disk loads torch", ""
    if has_machines:
        perhaps = (
            "a machine is busy, a slow disk loads torch, or a firewall stops connections between "
            "the hosts"
        )
        step = "open all TCP ports between the hosts, if one does; or "
    return (
        f"the start took longer than {limit_s:g} s ({waiting}). Perhaps {perhaps}. Next: {step}"
        f"set {variable} (in a notebook: %env {variable}), and start the pool again"
    )
