"""What an agent keeps for a hub that takes the pool back."""

from typing import Any

from nbddp.agent.kept_state import KEPT_BYTES, KeptState
from nbddp.wire import codec
from nbddp.wire.message_types import PoolSpec
from nbddp.wire.messages import (
    Display,
    Event,
    Execute,
    GroupsRebuilt,
    InputReply,
    InputRequest,
    Output,
    RankExited,
    RankReady,
    RankSpawned,
    RunFinished,
    RunStarted,
    StartRanks,
)
from tests.support.machines import make_spec

RUN = Execute(run_id="p-1", code="1\n", execution_count=1, first_line=1)


def request(pool: PoolSpec, **fields: Any) -> StartRanks:
    return StartRanks(pool=pool, master_addr="127.0.0.1", master_port=1, **fields)


class Scene:
    """Two ranks of node 0, and the events on their way through the agent."""

    def __init__(self) -> None:
        self.kept = KeptState(0)
        self.is_detached = False
        self.now = 10.0
        self.run_by_rank: dict[int, str | None] = {}
        self.pool = make_spec(2)
        self.kept.begin_start(request(self.pool))
        for rank in range(2):
            self.own(RankSpawned(rank=rank, node=0, pid=100 + rank, log_path="/log"))
            self.ready(rank)
            self.run_by_rank[rank] = None

    def own(self, event: Event) -> None:
        rank = getattr(event, "rank", -1)
        self.kept.note(event, self.run_by_rank.get(rank), self.now, is_detached=self.is_detached)

    def of_rank(self, event: Any) -> None:
        payload = codec.encode(event)
        if isinstance(event, RunFinished):
            self.run_by_rank[event.rank] = None
        self.kept.note_of_rank(
            codec.peek(payload),
            event.rank,
            [payload],
            self.run_by_rank.get(event.rank),
            is_detached=self.is_detached,
        )

    def ready(self, rank: int) -> None:
        self.of_rank(
            RankReady(rank=rank, pid=100 + rank, local_rank=rank, device="cpu", backend="gloo")
        )

    def begin(self, run: Execute = RUN) -> None:
        self.kept.begin_cell(run, 0.0)
        for rank in run.ranks or range(2):
            self.run_by_rank[rank] = run.run_id
            self.of_rank(RunStarted(run_id=run.run_id, rank=rank))

    def text(self, rank: int, text: str, run_id: str | None = RUN.run_id) -> None:
        self.own(Output(run_id=run_id, rank=rank, stream="stdout", text=text))

    def finish(self, rank: int, run_id: str = RUN.run_id) -> None:
        self.of_rank(RunFinished(run_id=run_id, rank=rank, elapsed_s=1.0, error=None))

    def exit(self, rank: int) -> None:
        self.own(
            RankExited(rank=rank, pid=100 + rank, exit_code=1, out_of_memory=False, last_output="")
        )
        del self.run_by_rank[rank]

    def replay(self) -> list[Event]:
        return [codec.decode_event(frames[0]) for frames in self.kept.replay(self.now)]

    def kinds(self) -> list[str]:
        return [f"{type(e).__name__} {getattr(e, 'rank', '')}" for e in self.replay()]

    def runs(self) -> list[str | None]:
        return [rank.run_id for rank in self.kept.ranks(self.run_by_rank)]


def test_a_cell_is_kept_from_its_beginning_until_its_end_is_settled():
    scene = Scene()
    scene.begin()
    scene.text(0, "a\n")
    scene.finish(0)
    assert scene.runs() == ["p-1", "p-1"]
    expected = ["RunStarted 0", "RunStarted 1", "Output 0", "RunFinished 0"]
    assert scene.kinds() == expected
    assert scene.kinds() == expected  # a second hub may need them as well
    scene.kept.settle("another")
    assert scene.kept.run == RUN
    scene.finish(1)
    scene.kept.settle("p-1")
    assert scene.kinds() == []
    assert scene.runs() == [None, None]


def test_the_next_cell_takes_the_place_of_the_last_one():
    scene = Scene()
    scene.begin()
    scene.finish(0)
    later = Execute(run_id="p-2", code="2\n", execution_count=2, first_line=1, ranks=(0,))
    scene.begin(later)
    assert scene.kinds() == ["RunStarted 0"]
    assert scene.runs() == ["p-2", "p-1"]  # rank 1 is still in the cell that was given up
    scene.finish(1)
    assert scene.kinds() == ["RunStarted 0"]


def test_text_is_kept_from_the_beginning_also_if_nobody_has_asked_to_keep_the_pool():
    kept = KeptState(0)
    kept.begin_start(request(make_spec(1)))
    kept.begin_cell(RUN, 0.0)
    kept.note(
        Output(run_id=RUN.run_id, rank=0, stream="stdout", text="a\n"),
        RUN.run_id,
        0.0,
        is_detached=False,
    )
    (frames,) = kept.replay(1.0)
    event = codec.decode_event(frames[0])
    assert isinstance(event, Output)
    assert event.text == "a\n"


def test_text_between_cells_is_kept_while_there_is_no_hub_and_given_once():
    scene = Scene()
    scene.text(0, "seen\n", None)
    scene.is_detached = True
    scene.text(0, "kept\n", None)
    assert scene.kinds() == ["Output 0"]
    assert scene.kinds() == []


def test_the_oldest_text_is_left_out_and_counted():
    scene = Scene()
    scene.begin()
    block = "x" * (KEPT_BYTES // 8)
    for _ in range(20):
        scene.text(0, block)
    scene.of_rank(Display(run_id="p-1", rank=1, data={}, metadata={}, transient={}))
    scene.finish(0)
    events = scene.replay()
    first, *rest = events
    assert isinstance(first, Output)
    texts = [event.text for event in rest if isinstance(event, Output)]
    assert first.dropped_bytes + sum(map(len, texts)) == 20 * len(block)
    assert sum(map(len, texts)) <= KEPT_BYTES
    assert {"RunStarted", "RunFinished", "Display"} <= {type(event).__name__ for event in rest}


def test_a_question_is_kept_until_it_is_answered():
    scene = Scene()
    scene.begin()
    for question in (1, 2):
        scene.of_rank(
            InputRequest(run_id="p-1", rank=0, question=question, prompt="", password=False)
        )
    scene.kept.answer(InputReply(run_id="p-1", question=1, value="a"), [0])
    scene.kept.answer(InputReply(run_id="p-1", question=2, value="a"), [1])
    (left,) = (event for event in scene.replay() if isinstance(event, InputRequest))
    assert left.question == 2


def test_an_exit_is_kept_until_a_fresh_rank_takes_the_place():
    scene = Scene()
    scene.begin()
    scene.exit(1)
    assert scene.runs() == ["p-1", "p-1"]
    assert scene.kinds()[-1] == "RankExited 1"
    scene.finish(0)
    scene.kept.settle("p-1")
    assert scene.kinds() == ["RankExited 1"]
    assert scene.runs() == [None, None]
    scene.kept.begin_start(request(scene.pool, ranks=(1,), joins=True))
    assert scene.kinds() == []
    fresh = scene.kept.ranks({0: None, 1: None})[1]
    assert (fresh.joins, fresh.is_replacement, fresh.is_ready, fresh.backend) == (
        True, True, False, "gloo",
    )  # fmt: skip
    scene.ready(1)
    scene.of_rank(GroupsRebuilt(number=1, rank=1))
    fresh = scene.kept.ranks({0: None, 1: None})[1]
    assert (fresh.joins, fresh.is_ready) == (False, True)


def test_a_pool_is_kept_when_all_ranks_of_the_node_have_been_ready():
    kept = KeptState(0)
    assert not kept.is_up
    kept.begin_start(request(make_spec(2)))
    assert not kept.is_up
    assert Scene().kept.is_up


def test_nothing_of_ranks_that_were_all_ended_is_kept():
    scene = Scene()
    scene.begin()
    scene.exit(1)
    scene.kept.begin_start(request(scene.pool))
    assert (scene.kinds(), scene.kept.run, scene.kept.is_up) == ([], None, False)


def test_an_exit_is_given_with_its_age_to_each_hub():
    scene = Scene()
    scene.begin()
    scene.exit(1)
    ages = []
    for scene.now in (12.0, 25.0):
        ages += [event.age_s for event in scene.replay() if isinstance(event, RankExited)]
    assert ages == [2.0, 15.0]
