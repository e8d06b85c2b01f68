"""The lines that a user types where ranks have stopped before operations."""

import pytest

from nbddp.controller.prompts.step_commands import (
    STEP_HELP,
    EndCell,
    Hold,
    Look,
    Send,
    Sight,
    StepCommand,
    Tell,
    parse,
)
from nbddp.rank.cells.breakpoints import OF_ALL_RANKS
from nbddp.wire.mesh_ranks import Mesh
from nbddp.wire.rank_set import RankSet
from nbddp.wire.step_replies import StepReply, StepVerb

_GRID = Mesh(name="grid", dims=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3), made_ns=1)
_MESHES = {0: [_GRID]}
STEP, CONTINUE, WHERE = StepVerb.STEP, StepVerb.CONTINUE, StepVerb.WHERE


@pytest.mark.parametrize(
    ("line", "command"),
    {
        "step": Send(StepReply(STEP)),
        "": Send(StepReply(STEP)),
        "  s ": Send(StepReply(STEP)),
        "step 10": Send(StepReply(STEP, count=10)),
        "step -r 0,2": Send(StepReply(STEP), RankSet.of([0, 2])),
        "s 3 -r 1-": Send(StepReply(STEP, count=3), RankSet.of([1, 2, 3])),
        "step -r all": Send(StepReply(STEP), RankSet.all(4)),
        "step -r tp=0": Send(StepReply(STEP), RankSet.of([0, 2])),
        "s 3 -r dp=1, tp=0:1": Send(StepReply(STEP, count=3), RankSet.of([2])),
        "hold -r grid[dp=0]": Hold(RankSet.of([0, 1])),
        "p x -r[0]": Send(StepReply(StepVerb.PRINT, code="x -r[0]")),
        "p x -rows[0]": Send(StepReply(StepVerb.PRINT, code="x -rows[0]")),
        "c": Send(StepReply(CONTINUE)),
        "continue -r 3": Send(StepReply(CONTINUE), RankSet.of([3])),
        "w": Send(StepReply(WHERE)),
        "p x[0] - 1": Send(StepReply(StepVerb.PRINT, code="x[0] - 1")),
        "print rank -r 2": Send(StepReply(StepVerb.PRINT, code="rank"), RankSet.of([2])),
        "run y = x - r": Send(StepReply(StepVerb.RUN, code="y = x - r")),
        "rank 2": Send(StepReply(StepVerb.DEBUG), RankSet.of([2])),
        "ranks": Look(Sight.TABLE),
        "waits": Look(Sight.WAITS),
        "trace": Look(Sight.TRACE),
        "until 17 -r 1": Send(StepReply(StepVerb.UNTIL, count=17), RankSet.of([1])),
        "up": Send(StepReply(StepVerb.UP)),
        "u 2 -r 1": Send(StepReply(StepVerb.UP, count=2), RankSet.of([1])),
        "d": Send(StepReply(StepVerb.DOWN)),
        "skip": Send(StepReply(StepVerb.SKIP)),
        "retry": Send(StepReply(StepVerb.RETRY)),
        "retry dist.send(x, 1) -r 0": Send(
            StepReply(StepVerb.RETRY, code="dist.send(x, 1)"), RankSet.of([0])
        ),
        "hold -r 1,3": Hold(RankSet.of([1, 3])),
        "release": Hold(RankSet.all(4), is_over=True),
        "release -r 1": Hold(RankSet.of([1]), is_over=True),
        "q": EndCell(),
        "help": Tell(STEP_HELP),
    }.items(),
)
def test_a_line(line: str, command: StepCommand):
    assert parse(line, 4, _MESHES) == command


@pytest.mark.parametrize(
    ("line", "words"),
    {
        "x": "'x' is no command here. Legal: step [N]",
        "step 0": "`step` takes a whole number above 0, not '0'",
        "step two": "`step` takes a whole number above 0, not 'two'",
        "step -1": "`step` takes a whole number above 0, not '-1'",
        "step -r even": "-r even chooses no ranks. Legal: -r 0,2",
        "step -r 0 -r 1": "-r is there twice. Next: step -r 0,1",
        "print": "`print` needs an expression: `print x`",
        "quit now": "`quit` takes nothing behind it, not 'now'",
        "until": "`until` needs the number of a collective: `until 20`",
        "until all_reduce": "`until 20`. %ddp break stops later cells elsewhere",
        "skip 2": "`skip` takes nothing behind it, not '2'; for some ranks: -r 0,2",
        "show": "`show` needs an expression",
        "hold": "`hold -r 3`",
        "rank 9": "one of the ranks 0 to 3",
        "rank": "one of the ranks 0 to 3",
        "step -r 7": "ranks 0 to 3",
        "print -r 1 x + 1": "-r stands at the end of a command. Next: print x + 1 -r 1",
        "run -r dp=0 x = 2": "Next: run x = 2 -r dp=0",
        "step -r pp=0": "no DeviceMesh has the dimension pp; legal: grid (dp=0 to dp=1",
    }.items(),
)
def test_a_line_that_is_none_says_what_is_legal(line: str, words: str):
    command = parse(line, 4, _MESHES)
    assert isinstance(command, Tell)
    assert words in command.text


@pytest.mark.parametrize(
    "reply",
    [
        StepReply(STEP, count=12),
        StepReply(CONTINUE),
        StepReply(StepVerb.UNTIL, count=5),
        StepReply(StepVerb.LEAVE),
        StepReply(StepVerb.SKIP),
        StepReply(StepVerb.UP, count=3),
        StepReply(StepVerb.RETRY),
        StepReply(StepVerb.RETRY, code="dist.all_reduce(x  + 1)"),
        StepReply(WHERE),
        StepReply(StepVerb.DEBUG),
        StepReply(StepVerb.RUN, code="x  = 'a b'"),
        StepReply(StepVerb.PRINT, count=3, code="x  + 1"),
    ],
)
def test_a_reply_travels_as_text(reply: StepReply):
    assert StepReply.parse(str(reply)) == reply


@pytest.mark.parametrize("word", sorted(OF_ALL_RANKS))
def test_a_word_that_the_debugger_of_one_rank_explains_is_a_command(word: str):
    commands = [parse(line, 4, _MESHES) for line in (word, f"{word} x", f"{word} -r 0")]
    assert not all(isinstance(command, Tell) for command in commands)
