"""The rows of a card: which ranks share one, and where its parts break."""

import re

import pytest

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb
from nbddp.controller.diagnosis.report import PerRank
from nbddp.notebook.render import rank_rows
from nbddp.notebook.render.rank_rows import RankRow
from nbddp.wire.flight_recorder.schema import Site
from nbddp.wire.rank_set import RankSet


def ring(count: int, source: str = "dist.send(x, peer)") -> list[RankRow]:
    """The rows of ranks that all wait in a send to the next one."""
    site = Site(file="c", line=4, source=source, cell=4)
    places = {}
    for rank in range(count):
        waits = Predicate(RankVerb.WAITS, f" in send to rank {(rank + 1) % count}")
        places[rank] = PerRank(rank, "running", waits, site, 1.1)
    return rank_rows.rows_of(places, RankSet())


def test_few_places_that_differ_in_numbers_have_a_row_each():
    assert [row.doing for row in ring(2)] == [
        "waits in send to rank 1 for 1.1 s",
        "waits in send to rank 0 for 1.1 s",
    ]


@pytest.mark.parametrize(
    ("count", "partners"),
    [(9, "1,2,3,4,5,6,7,8,0"), (64, "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,…")],
)
def test_many_share_a_row_with_the_numbers_in_the_order_of_ranks(count: int, partners: str):
    assert [(row.ranks, row.doing) for row in ring(count)] == [
        (RankSet.all(count), f"wait in send to rank {partners} for 1.1 s")
    ]


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("dist.send(x, peer)", ["dist.send(x, peer)"]),
        (
            "loss = torch.nn.functional.mse_loss(model(x), y.float(), beta=0.5)",
            [
                *("loss = torch.", "nn.", "functional.", "mse_loss(", "model(", "x), y."),
                "float(), beta=0.5)",
            ],
        ),
    ],
)
def test_long_code_breaks_between_names_only(source: str, parts: list[str]):
    code = re.search("<code[^>]*>(.*)</code>", rank_rows.html(ring(9, source)))
    assert code is not None
    assert code[1].split("<wbr>") == parts
