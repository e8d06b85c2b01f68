"""The facts about a cell that its output needs, for tests."""

from nbddp.notebook.output.cell_output import OutputSpec
from nbddp.settings import Settings
from nbddp.wire.rank_set import RankSet


def spec_of(
    ranks: int, settings: Settings | None = None, *, world_size: int | None = None
) -> OutputSpec:
    """A cell on the first ``ranks`` of a pool, whose logs are ``/logs/rank0.log`` and so on."""
    return OutputSpec(
        RankSet.all(ranks),
        ranks if world_size is None else world_size,
        "scope",
        settings or Settings(),
        {rank: f"/logs/rank{rank}.log" for rank in range(ranks)},
    )
