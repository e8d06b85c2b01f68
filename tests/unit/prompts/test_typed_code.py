"""The lines typed at a prompt after which a cell does, perhaps, other than its code says."""

import pytest

from nbddp.controller.prompts.step_commands import show_code
from nbddp.controller.prompts.typed_code import changes, typed_at
from nbddp.wire.flight_recorder import Operation, Signature, Site
from nbddp.wire.messages import InputRequest
from nbddp.wire.step_replies import StepReply, StepVerb

SITE = Site(cell=5, line=3)
STOP = Operation(
    record_id=0, pg_id="0", signature=Signature("collective", "barrier"), state="scheduled",
    site=SITE,
)  # fmt: skip


def stopped(rank: int, *, is_stuck: bool = False) -> InputRequest:
    return InputRequest(
        run_id="r", rank=rank, question=1, prompt="", password=False, stop=STOP, is_stuck=is_stuck
    )


def debugged(rank: int) -> InputRequest:
    return InputRequest(run_id="r", rank=rank, question=1, prompt="", password=False, debugger=SITE)


def typed(verb: StepVerb, code: str = "") -> tuple[str, ...]:
    return typed_at([(stopped(rank), StepReply(verb, code=code)) for rank in (0, 2)])


def test_another_call_is_told_with_its_ranks_and_its_place():
    assert typed(StepVerb.RETRY, "dist.broadcast(u, 1)") == (
        "ranks 0,2 got `retry dist.broadcast(u, 1)` at the prompt, cell [5], line 3",
    )


@pytest.mark.parametrize("code", ["dist.all_reduce(", "x = 1", "f(x); f(y)", "x"])
def test_a_retry_that_is_no_call_is_refused_and_no_cause(code: str):
    assert typed(StepVerb.RETRY, code) == ()


def test_code_that_may_change_variables_is_told():
    assert typed(StepVerb.RUN, "x = 5") == (
        "ranks 0,2 got `run x = 5` at the prompt, cell [5], line 3",
    )


@pytest.mark.parametrize("verb", sorted(set(StepVerb) - {StepVerb.RUN}, key=str))
def test_other_commands_are_not_told(verb: StepVerb):
    """The call of a ``retry`` alone is that of the line."""
    assert typed(verb, "" if verb is StepVerb.RETRY else "x = 5") == ()


def test_code_at_a_deadlock_runs_no_statements():
    assert typed_at([(stopped(0, is_stuck=True), StepReply(StepVerb.RUN, code="x = 5"))]) == ()


@pytest.mark.parametrize(
    ("code", "may"),
    [
        ("x = 5", True),
        ("x += 1; y", True),
        ("del x", True),
        ("for i in range(3): pass", True),
        ("(x := 5)", True),
        ("x.fill_(1)", True),
        ("items.append(1)", True),
        ("print(next(batches))", True),
        ("x", False),
        ("x.shape[0] + 1", False),
        ("print(len(x))", False),
        ("import os", False),
        ("x =", False),
        (show_code("x"), False),
        ("assert x.isfinite().all()", False),
        ("x.mean().item()", False),
        ("torch.norm(x)", False),
        ("assert batches.pop()", True),
        ("x" + ".clone()" * 600, False),  # deeper than Python nests calls
    ],
)
def test_code_changes_something_perhaps(code: str, may: bool):
    assert changes(code, calls=True) == may


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("x = 5", True),
        ("!x = 5", True),
        ("x.fill_(1)", True),
        ("jump 7", True),
        ("j 7", True),
        ("p x", False),
        ("n", False),
        ("return", False),
        ("continue", False),
        ("b 5", False),
        ("look(x)", False),
        ("jump", False),
        ("x = 5;; c", True),
        ("p x;; w.fill_(0)", True),
        ("p x.fill_(0)", True),
        ("p x;; c", False),
    ],
)
def test_lines_for_a_debugger(line: str, may: bool):
    told = (f"rank 1 got `{line}` at the prompt, cell [5], line 3",) if may else ()
    assert typed_at([(debugged(1), line)]) == told


def test_long_code_is_cut_to_one_line():
    (text,) = typed(StepVerb.RUN, f"x = [{'1, ' * 99}]\ny = 2")
    assert "\n" not in text
    assert len(text) < 160
