"""Each question of a rank gets its own answer."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from nbddp.rank.cells.stdin import Stdin
from nbddp.wire.flight_recorder.schema import AT_PROMPT
from nbddp.wire.messages import InputReply, InputRequest
from tests.support.polling import poll_until


class Rank:
    """A shell and a link that only keep what is sent."""

    def __init__(self) -> None:
        self.asked: list[InputRequest] = []
        self.shell: Any = SimpleNamespace(run_id="r", rank=2)
        link: Any = SimpleNamespace(send_in_order=self.asked.append)
        self.stdin = Stdin(cast("Any", self.shell), cast("Any", link))
        self.answers: dict[str, str] = {}

    def ask(self, prompt: str) -> threading.Thread:
        def ask() -> None:
            try:
                self.answers[prompt] = self.stdin.ask(prompt)
            except EOFError as error:
                self.answers[prompt] = f"EOFError: {error}"

        count = len(self.asked)
        thread = threading.Thread(target=ask)
        thread.start()
        poll_until(lambda: len(self.asked) > count)
        return thread

    def answer(self, request: InputRequest, value: str | None) -> None:
        self.stdin.answer(InputReply(run_id=request.run_id, question=request.question, value=value))


@pytest.fixture
def rank() -> Rank:
    return Rank()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_threads_get_the_answers_to_their_own_questions(rank: Rank, order: tuple[int, int]):
    threads = [rank.ask("first"), rank.ask("second")]
    for index in order:
        rank.answer(rank.asked[index], f"of {rank.asked[index].prompt}")
    for thread in threads:
        thread.join(10)
    assert rank.answers == {"first": "of first", "second": "of second"}


def test_a_late_answer_reaches_no_other_question(rank: Rank):
    old = InputRequest(run_id="r", rank=2, question=0, prompt="", password=False)
    thread = rank.ask("new")
    rank.answer(old, "late")
    rank.answer(rank.asked[0], "right")
    thread.join(10)
    rank.answer(rank.asked[0], "again")
    assert rank.answers == {"new": "right"}


def test_the_end_of_input_and_of_the_cell(rank: Rank):
    thread = rank.ask("first")
    rank.answer(rank.asked[0], None)
    thread.join(10)
    thread = rank.ask("second")
    rank.shell.run_id = None
    thread.join(10)
    assert rank.answers == {
        "first": "EOFError: end of input",
        "second": "EOFError: the cell that asked has ended",
    }


def test_the_diagnosis_knows_a_prompt_by_its_function():
    assert Stdin._wait_for_answer.__name__ == AT_PROMPT
