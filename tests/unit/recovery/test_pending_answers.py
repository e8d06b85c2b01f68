"""Questions to ranks: they are settled by answers, or by time."""

from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers
from nbddp.controller.state import Action
from nbddp.wire.messages import OperationsAborted


def armed(rank: int) -> OperationsAborted:
    return OperationsAborted(number=1, rank=rank, phase="arm", pg_ids=())


def test_many_ranks_have_more_time_as_their_answers_are_read_one_after_another():
    settled: list[Answers] = []

    def settle(answers: Answers, now: float) -> list[Action]:
        settled.append(answers)
        return []

    questions = PendingAnswers()
    questions.ask("look", 1, range(64), until=0.4, then=settle)
    questions.ask("look", 2, range(8192), until=0.4, then=settle)
    questions.tick(0.4)
    assert not questions.is_open("look", 1)
    assert questions.is_open("look", 2)
    questions.tick(3.0)
    assert settled == [{}, {}]


def test_the_answers_of_many_ranks_put_the_end_off_while_they_come():
    settled: list[Answers] = []

    def settle(answers: Answers, now: float) -> list[Action]:
        settled.append(answers)
        return []

    questions = PendingAnswers()
    questions.ask("arm", 1, range(100), until=0.4, then=settle)
    for rank in range(90):  # one each 0.1 s
        questions.answer(armed(rank), 0.1 * (rank + 1))
    questions.tick(9.9)
    assert settled == []
    questions.tick(10.1)
    assert [len(answers) for answers in settled] == [90]


def test_no_answers_put_the_end_off_for_long():
    questions = PendingAnswers()
    questions.ask("arm", 1, range(1000), until=0.4, then=lambda answers, now: [])
    for rank in range(200):
        questions.answer(armed(rank), 0.1 * (rank + 1))
    assert not questions.is_open("arm", 1)


def test_few_ranks_have_the_time_that_was_given():
    questions = PendingAnswers()
    questions.ask("arm", 1, range(3), until=0.4, then=lambda answers, now: [])
    questions.answer(armed(0), 0.3)
    questions.tick(0.4)
    assert not questions.is_open("arm", 1)


def test_all_questions_wait_longer_while_the_hub_is_busy():
    questions = PendingAnswers()
    questions.ask("arm", 1, range(3), until=0.4, then=lambda answers, now: [])
    questions.put_off(2.0)
    questions.tick(2.3)
    assert questions.is_open("arm", 1)
    questions.tick(2.4)
    assert not questions.is_open("arm", 1)
