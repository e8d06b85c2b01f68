"""The rows of a card: which ranks share one, and where its parts break."""

import re
from dataclasses import replace

import pytest

from nbddp.controller.diagnosis.phrases import Predicate, RankVerb, waits_for
from nbddp.controller.diagnosis.report import PerRank
from nbddp.notebook.render import rank_rows
from nbddp.notebook.render.rank_rows import RankRow
from nbddp.wire.flight_recorder.schema import Operation, Signature, Site
from nbddp.wire.rank_set import RankSet


def ring(count: int, source: str = "dist.send(x, peer)") -> list[RankRow]:
    """The rows of ranks that all wait in a send to the next one."""
    site = Site(file="c", line=4, source=source, cell=4)
    places = {}
    for rank in range(count):
        peer = (rank + 1) % count
        waits = Predicate(
            RankVerb.WAITS, f" in send to rank {peer}", peer=peer, rest_with=" in send to {}".format
        )
        places[rank] = PerRank(rank, "running", waits, site, 1.1)
    return rank_rows.rows_of(places, RankSet())


def test_few_places_that_differ_in_numbers_have_a_row_each():
    assert [row.doing for row in ring(2)] == [
        "has waited in send to rank 1 for 1.1 s",
        "has waited in send to rank 0 for 1.1 s",
    ]


@pytest.mark.parametrize("count", [9, 64])
def test_many_share_a_row_that_names_the_distance_of_their_partners(count: int):
    assert {row.names: row.doing for row in ring(count)} == {
        f"ranks 0-{count - 2}": "have waited in send to the next rank for 1.1 s",
        f"rank {count - 1}": "has waited in send to rank 0 for 1.1 s",
    }


def test_only_the_other_end_of_a_message_gets_another_name():
    send = Operation(
        record_id=1, pg_id="0", signature=Signature("send", "send"), state="scheduled", peer=2
    )

    def name(operation: Operation, peer: str) -> str:
        return f"the rank 2 step's {operation.label(peer=peer)}"

    waits = waits_for([send], name, needs_all=True)
    assert str(waits) == "waits in the rank 2 step's send to rank 2"
    assert str(waits.with_peer("the next rank")) == (
        "waits in the rank 2 step's send to the next rank"
    )


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
    code = re.search("<code[^>]*>(.*?)</code>", rank_rows.html(ring(2, source)))
    assert code is not None
    assert code[1].split("<wbr>") == parts


def test_ranks_of_several_nodes_have_a_column_of_nodes():
    places = {
        rank: PerRank(rank, "running", Predicate(RankVerb.CALLED, " barrier"), node=node)
        for rank, node in {0: 0, 2: 1}.items()
    }
    (row,) = rank_rows.rows_of(places, RankSet())
    assert row.beginning == "ranks 0,2 (nodes 0-1) called barrier"
    assert "nodes 0-1</td>" in rank_rows.html([row])
    alone = {rank: replace(place, node=-1) for rank, place in places.items()}
    (row,) = rank_rows.rows_of(alone, RankSet())
    assert row.beginning == "ranks 0,2 called barrier"
    assert "node" not in rank_rows.html([row])
