"""Questions to ranks: they are settled by answers, or by time."""

from nbddp.controller.recovery.pending_answers import Answers, PendingAnswers
from nbddp.controller.state import Action


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
