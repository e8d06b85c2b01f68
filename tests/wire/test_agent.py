"""A real agent in a thread of the test, between a hub and a rank that the test plays."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbddp.wire import codec
from nbddp.wire.flight_recorder.schema import RankLook
from nbddp.wire.messages import (
    AbortOperations,
    DescribeRank,
    DescribeValue,
    Event,
    Execute,
    GroupsRebuilt,
    OperationsAborted,
    Output,
    RankDescribed,
    RanksStalled,
    RebuildGroups,
    RunFinished,
    ValueDescribed,
)
from nbddp.wire.values.value_questions import Tree, TreeOf
from tests.support.agent_scene import LIMIT, Scene
from tests.support.polling import poll_until

CELL = Execute(run_id="r1", code="pass", execution_count=1, first_line=1)
LOOK = DescribeRank(number=1)
FREE = AbortOperations(number=2, run_id="r1", phase="arm", reason="deadlock")
REFORM = RebuildGroups(number=3, groups=(), group_count=1)
ANSWERS: list[Event] = [
    RankDescribed(
        number=1, rank=0, look=RankLook(rank=0, pid=1, activity="idle", version=1, time_ns=1)
    ),
    OperationsAborted(number=2, rank=0, phase="arm", pg_ids=("0:0",)),
    GroupsRebuilt(number=3, rank=0),
]


@pytest.fixture
def scene(short_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    made = Scene(short_folder, monkeypatch)
    yield made
    made.close()


def test_a_flood_of_displays_waits_in_the_rank_while_the_hub_does_not_read(scene: Scene):
    held = scene.flood() + 1
    scene.show(held)
    poll_until(lambda: (0, held) in scene.agent._held_syncs)
    assert held not in scene.answered()
    assert scene.backlog() < LIMIT + 3 * 200_000
    poll_until(lambda: scene.events() == [] and held in scene.answered())


def test_a_display_has_its_place_in_the_text(scene: Scene):
    scene.hub.send_to_ranks({0: (0,)}, CELL)
    poll_until(lambda: CELL in scene.received())
    stdout_fd = scene.pipes.write_ends()[0].take()
    os.write(stdout_fd, b"before")
    scene.show(1)
    poll_until(lambda: scene.answered() == [1])
    os.write(stdout_fd, b"after")
    scene.rank.send(codec.encode(RunFinished(run_id="r1", rank=0, elapsed_s=1.0, error=None)))
    found: list[str] = []

    def has_ended() -> bool:
        for _, event, _ in scene.hub.receive():
            found.append(event.text if isinstance(event, Output) else type(event).__name__)
        return "RunFinished" in found

    poll_until(has_ended)
    assert [each for each in found if each != "RanksStalled"] == [
        "before",
        "Display",
        "after",
        "RunFinished",
    ]


def test_a_question_about_values_can_be_interrupted_until_it_is_answered(scene: Scene):
    process = scene.agent._ranks[0]
    request = DescribeValue(request_id="v2", question=TreeOf("x"), ranks=(0,))
    scene.hub.send_to_ranks({0: (0,)}, request)
    poll_until(lambda: request in scene.received())
    assert process.pulling == "v2"
    late = ValueDescribed(request_id="v1", rank=0, answer=Tree())
    scene.rank.send(codec.encode(late))
    poll_until(lambda: scene.events() == [late])
    assert process.pulling == "v2"
    answer = ValueDescribed(request_id="v2", rank=0, answer=Tree())
    scene.rank.send(codec.encode(answer))
    poll_until(lambda: scene.events() == [late, answer])
    assert process.pulling == ""


def test_messages_about_collectives_pass_while_displays_wait(scene: Scene):
    held = scene.flood() + 1
    scene.show(held)
    poll_until(lambda: (0, held) in scene.agent._held_syncs)
    for request in (LOOK, FREE, REFORM):
        scene.hub.send_to_ranks({0: (0,)}, request)
    poll_until(lambda: scene.received()[-3:] == [LOOK, FREE, REFORM])
    assert held not in scene.answered()
    for answer in ANSWERS:
        scene.rank.send(codec.encode(answer))
    poll_until(lambda: scene.events() == ANSWERS)


def test_a_rank_is_watched_while_its_cell_runs(scene: Scene):
    idle_s = scene.agent._timeout()
    assert idle_s > 0.5  # woken by nothing
    record = scene.issue()
    scene.hub.send_to_ranks({0: (0,)}, CELL)
    quiet = RanksStalled(node=0, ranks=(0,))
    poll_until(lambda: scene.events() == [quiet, quiet])
    assert scene.agent._timeout() <= 0.1
    scene.writer.complete(record, 1)
    count = poll_until(lambda: len(scene.events()))
    scene.issue()
    poll_until(lambda: scene.events()[count:])
    finished = RunFinished(run_id="r1", rank=0, elapsed_s=1.0, error=None)
    scene.rank.send(codec.encode(finished))
    poll_until(lambda: scene.events()[-1] == finished)
    poll_until(lambda: scene.agent._timeout() == idle_s)
    assert scene.events()[-1] == finished
