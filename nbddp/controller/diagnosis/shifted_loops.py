"""Finds ranks that are in different iterations of one loop when they call the same collective.

Runs in: the notebook's process. Pure. Nothing hangs then, and data of different iterations is
mixed: gradients of step 1 with those of step 2.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nbddp.controller.diagnosis.history import is_local_failure
from nbddp.controller.diagnosis.wait_graph import WaitForGraph
from nbddp.wire.flight_recorder import Operation
from nbddp.wire.flight_recorder.matching import BARRIERS
from nbddp.wire.rank_set import Rank, RankSet, ranks_by_value


@dataclass(frozen=True)
class ShiftedLoop:
    """A collective that ranks called at one line, in different iterations of the loops around."""

    operation_by_rank: Mapping[Rank, Operation]
    clusters: tuple[RankSet, ...]  #: ranks in the same iteration; the largest set first
    is_first: bool  #: the records before it show that it is the first one
    lasts: bool  #: the last collective that can be compared is shifted, too

    @property
    def owner(self) -> Rank:
        """A rank that called it."""
        return self.clusters[0].ranks[0]

    @property
    def operation(self) -> Operation:
        """The call of `owner`."""
        return self.operation_by_rank[self.owner]

    @property
    def culprits(self) -> RankSet:
        """The ranks that are not in the iteration of the majority; all ranks without majority."""
        return RankSet.of(rank for ranks in self.clusters[self.has_majority :] for rank in ranks)

    @property
    def has_majority(self) -> bool:
        """Whether one iteration has more ranks than each other one."""
        return len(self.clusters[0]) > len(self.clusters[1])

    @property
    def names(self) -> tuple[str, ...]:
        """The loop variables that differ, the outermost first."""
        iterations = [operation.iteration for operation in self.operation_by_rank.values()]
        return tuple(
            variable.name
            for index, variable in enumerate(iterations[0])
            if any(iteration[index] != variable for iteration in iterations)
        )

    @property
    def ahead(self) -> RankSet:
        """The ranks in the latest iteration."""
        values = {
            rank: [variable.value for variable in operation.iteration]
            for rank, operation in self.operation_by_rank.items()
        }
        latest = max(values.values())
        return RankSet.of(rank for rank, those in values.items() if those == latest)

    def ends_in(self, calls: Mapping[Rank, Operation]) -> bool:
        """Return whether calls that belong together do not match because of the loop.

        The ranks that are ahead have left out its call. They are past it, and the others in it.
        """
        ahead = self.ahead
        inside = {
            rank
            for rank, call in calls.items()
            if call.site.position == self.operation.site.position
            and call.pg_id == self.operation.pg_id
        }
        return bool(inside) and all((rank in ahead) != (rank in inside) for rank in calls)


def find_shifted_loops(graph: WaitForGraph, run_id: str) -> list[ShiftedLoop]:
    """Find for each group the first collective that ranks called in different iterations.

    Args:
        graph: the ranks at one moment.
        run_id: only operations of this run count; empty: those of all runs.
    """
    called: dict[str, dict[int, dict[Rank, Operation]]] = {}
    for rank, history in graph.histories.items():
        for operation in history.operations.values():
            if _counts(operation) and run_id in ("", operation.run_id):
                by_number = called.setdefault(operation.pg_id, {})
                by_number.setdefault(operation.collective_seq_id, {})[rank] = operation
    return [
        loop
        for _, by_number in sorted(called.items())
        if (loop := _shifted_loop(graph, by_number)) is not None
    ]


def _counts(operation: Operation) -> bool:
    return (
        operation.signature.kind == "collective"
        and operation.signature.op not in BARRIERS
        and not is_local_failure(operation)
    )


def _shifted_loop(
    graph: WaitForGraph, by_number: Mapping[int, Mapping[Rank, Operation]]
) -> ShiftedLoop | None:
    first: Mapping[Rank, Operation] = {}
    has_earlier = lasts = False
    for _, operation_by_rank in sorted(_comparable(by_number)):
        if len({first[rank].iteration for rank in operation_by_rank if rank in first}) == 1:
            continue  # of the ranks that are shifted, only those in one iteration called it
        is_shifted = len({each.iteration for each in operation_by_rank.values()}) > 1
        rank, operation = next(iter(operation_by_rank.items()))
        if is_shifted and graph.has_unaligned_numbers(rank, operation):
            return None
        if is_shifted and not first:
            first = operation_by_rank
        has_earlier = has_earlier or not first
        lasts = is_shifted
    if not first:
        return None
    by_iteration = ranks_by_value({rank: each.iteration for rank, each in first.items()})
    clusters = sorted(by_iteration.values(), key=lambda ranks: (-len(ranks), ranks.ranks))
    is_whole = all(graph.histories[rank].is_whole(each.run_id) for rank, each in first.items())
    return ShiftedLoop(first, tuple(clusters), has_earlier or is_whole, lasts)


def _comparable(
    by_number: Mapping[int, Mapping[Rank, Operation]],
) -> Iterator[tuple[int, Mapping[Rank, Operation]]]:
    """The collectives that several ranks called at one line, in loops with the same variables."""
    for number, operation_by_rank in by_number.items():
        places = {
            (
                each.signature.op,
                each.site.position,
                tuple(variable.name for variable in each.iteration),
            )
            for each in operation_by_rank.values()
        }
        is_one = len(places) == 1 and len(operation_by_rank) > 1
        if is_one and all(each.iteration for each in operation_by_rank.values()):
            yield number, operation_by_rank
