"""Exports a trace in formats of other programs: records for pandas, JSON for Perfetto.

Runs in: the notebook's process. Pure: no clock, no I/O.

chrome://tracing and ui.perfetto.dev open the JSON, see "Trace Event Format" (Google, 2016): ``M``
names tracks, ``X`` is a slice with a duration, ``s`` and ``f`` are the ends of an arrow. Its times
are in microseconds.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from nbddp.controller.trace.rows import RankPart, TraceRow
from nbddp.wire.rank_set import RankSet


def trace_records(rows: Sequence[TraceRow], ranks: RankSet | None = None) -> list[dict[str, Any]]:
    """Make one flat dict for each row and rank, as ``pandas.DataFrame(records)`` takes them.

    Args:
        rows: operations, the ranks side by side.
        ranks: only the parts of these; default: all.

    Returns:
        Dicts with these fields. A value that is not known is None.

        ============================  =============================================================
        ``row``                       number of the operation: the same for what ranks did together
        ``cell``                      execution count of the cell that ran; 0: not known
        ``group``, ``group_desc``     torch's name of the process group; the user's description
        ``kind``                      ``collective``, ``message``, ``creation`` or ``store``
        ``op``                        name of the operation: ``all_reduce``
        ``collective_seq_id``         number of the collective in its group; 0: it is none
        ``p2p_seq_id``                number of the message between its two ranks; 0: it is none
        ``src``, ``dst``, ``tag``     global ranks and tag of a message; -1: none, or any source
        ``rank``                      global rank of this part
        ``state``                     ``scheduled``, ``completed`` or ``failed``
        ``created_ns``                when the rank came, in ns since the first arrival of all
        ``completed_ns``              when it noticed the end, counted alike; None: not yet
        ``waited_ns``                 how long a thread of it was blocked for the operation, in ns
        ``arrived_after_ns``          how much later than the first rank it came, in ns
        ``spread_ns``                 from the first arrival to the last, in ns
        ``last_rank``                 the rank that came last; None: that is not known
        ``nbytes``                    size of the input tensors on this rank, in bytes
        ``bandwidth_bytes_per_s``     of the row: algorithm bandwidth
        ``async_op``                  whether the call did not wait for the end
        ``site_cell``                 execution count of the cell in which the line stands
        ``file``, ``line``            the line that issued the operation
        ``function``, ``source``      its function and its text
        ``error``                     what the operation raised; empty: nothing
        ============================  =============================================================
    """
    start_ns = min((row.first_ns for row in rows), default=0)
    return [
        {
            "row": number,
            "cell": part.cell,
            "group": row.pg_name,
            "group_desc": row.pg_desc,
            "kind": row.kind,
            "op": part.op,
            "collective_seq_id": row.collective_seq_id,
            "p2p_seq_id": row.p2p_seq_id,
            "src": row.src,
            "dst": row.dst,
            "tag": row.tag,
            "rank": part.rank,
            "state": part.state,
            "created_ns": part.created_ns - start_ns,
            "completed_ns": None if part.completed_ns is None else part.completed_ns - start_ns,
            "waited_ns": part.waited_ns,
            "arrived_after_ns": part.created_ns - row.first_ns,
            "spread_ns": row.spread_ns,
            "last_rank": row.last_rank,
            "nbytes": part.nbytes,
            "bandwidth_bytes_per_s": row.bandwidth_bytes_per_s,
            "async_op": part.async_op,
            "site_cell": part.site.cell,
            "file": part.site.file,
            "line": part.site.line,
            "function": part.site.function,
            "source": part.site.source,
            "error": part.error,
        }
        for number, row in enumerate(rows)
        for part in row.parts.values()
        if ranks is None or part.rank in ranks
    ]


def chrome_trace(
    rows: Sequence[TraceRow], ranks: RankSet | None = None, lack: str = ""
) -> dict[str, Any]:
    """Make the object for ``chrome://tracing`` and Perfetto, ready for `json.dump`.

    Each rank is a process with one track; operations that overlap get a second one, since slices
    of one track must nest. An arrow leads from the rank that came last to those that waited, and
    from a send to its recv.

    Args:
        rows: operations, the ranks side by side.
        ranks: only the tracks of these; default: all.
        lack: the sentence on records that are missing; empty: all are there.

    Returns:
        ``{"traceEvents": [...], "displayTimeUnit": "ms"}``; times in it are in microseconds since
        the first arrival. ``otherData`` has what is missing.
    """
    start_ns = min((row.first_ns for row in rows), default=0)
    end_ns = max((_latest_ns(row) for row in rows), default=0)
    placed = sorted(
        (
            (part, row)
            for row in rows
            for part in row.parts.values()
            if ranks is None or part.rank in ranks
        ),
        key=lambda pair: (pair[0].created_ns, pair[0].record_id),
    )
    busy_until: dict[int, list[int]] = {}
    lane_by_part: dict[int, int] = {}
    slices = []
    for part, row in placed:
        until_ns = end_ns if part.completed_ns is None else part.completed_ns
        lane = _free_lane(busy_until.setdefault(part.rank, []), part.created_ns, until_ns)
        lane_by_part[id(part)] = lane
        slices.append(_slice(part, row, lane, start_ns, until_ns))
    arrows: list[dict[str, Any]] = []
    for row in rows:
        for source, target, at_ns in _arrows(row):
            if not {id(source), id(target)} <= lane_by_part.keys():
                continue
            common = {"cat": "waits for", "name": row.label, "id": len(arrows) // 2 + 1}
            for part, phase, moment_ns in ((source, "s", source.created_ns), (target, "f", at_ns)):
                arrows.append(
                    {
                        **common,
                        "ph": phase,
                        "pid": part.rank,
                        "tid": lane_by_part[id(part)],
                        "ts": (moment_ns - start_ns) / 1000,
                        **({"bp": "e"} if phase == "f" else {}),
                    }
                )
    names = [event for rank in sorted(busy_until) for event in _names(rank, len(busy_until[rank]))]
    trace = {"traceEvents": [*names, *slices, *arrows], "displayTimeUnit": "ms"}
    return {**trace, "otherData": {"missing": lack}} if lack else trace


def _latest_ns(row: TraceRow) -> int:
    return max(part.completed_ns or part.created_ns for part in row.parts.values())


def _free_lane(busy_until: list[int], begin_ns: int, end_ns: int) -> int:
    """Find the first track that is free at ``begin_ns``, counted from 1."""
    for lane, until_ns in enumerate(busy_until):
        if until_ns <= begin_ns:
            busy_until[lane] = end_ns
            return lane + 1
    busy_until.append(end_ns)
    return len(busy_until)


def _slice(
    part: RankPart, row: TraceRow, lane: int, start_ns: int, until_ns: int
) -> dict[str, Any]:
    bandwidth = row.bandwidth_bytes_per_s
    args: dict[str, Any] = {
        "group": row.pg_name if not row.pg_desc else f"{row.pg_name} ({row.pg_desc})",
        "members": str(row.members),
        "state": part.state,
        "waited_ms": part.waited_ns / 1e6,
        "arrived_after_ms": (part.created_ns - row.first_ns) / 1e6,
        "nbytes": part.nbytes,
        "site": str(part.site),
        "source": part.site.source,
    }
    if bandwidth is not None:
        args["bandwidth_bytes_per_s"] = round(bandwidth)
    if row.last_rank is not None:
        args["last_rank"] = row.last_rank
    if part.error:
        args["error"] = part.error
    ended = "" if part.completed_ns is not None else " (not complete)"
    return {
        "ph": "X",
        "cat": row.kind,
        "name": f"{row.label}{ended}",
        "pid": part.rank,
        "tid": lane,
        "ts": (part.created_ns - start_ns) / 1000,
        "dur": max(0, until_ns - part.created_ns) / 1000,
        "args": args,
    }


def _arrows(row: TraceRow) -> Iterator[tuple[RankPart, RankPart, int]]:
    """Give ``(from, to, when it arrives)``; an arrow ends inside the slice to which it leads."""
    if row.kind == "message":
        if row.src in row.parts and row.dst in row.parts:
            source, target = row.parts[row.src], row.parts[row.dst]
            at_ns = max(source.created_ns, target.created_ns)
            if target.completed_ns is None or target.completed_ns >= at_ns:
                yield source, target, at_ns
        return
    if row.last_rank is None:
        return
    last = row.parts[row.last_rank]
    for part in row.parts.values():
        is_still_there = part.completed_ns is None or part.completed_ns >= last.created_ns
        if part.created_ns < last.created_ns and is_still_there:
            yield last, part, last.created_ns


def _names(rank: int, lanes: int) -> Iterator[dict[str, Any]]:
    """Name the tracks of a rank, and put them in order."""
    yield {"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}}
    yield {"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}}
    for lane in range(1, lanes + 1):
        name = "operations" if lane == 1 else f"at the same time ({lane})"
        yield {
            "ph": "M",
            "name": "thread_name",
            "pid": rank,
            "tid": lane,
            "args": {"name": name},
        }
