"""The error of a cell in which ranks raised: its tracebacks, by group, and its headline."""

import pytest
from msgspec.structs import replace

from nbddp.controller.cell_errors import build
from nbddp.controller.cell_errors.traceback_groups import MAX_FULL
from nbddp.controller.state.outcome import RankResult, RunOutcome
from nbddp.errors import CellError
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.rank_set import RankSet
from tests.support.cell_errors import LOGS, cell_error, died, freed, ok, plain, raised, site, text

NO_GROUP = "Default process group has not been initialized, please make sure"

# --- tracebacks by group -------------------------------------------------------------------------


def test_no_error_without_a_failure():
    outcome = RunOutcome(run_id="r", results={0: ok(0), 1: ok(1)}, elapsed_s=1.0)
    assert build.cell_error(outcome, "cell [7]", LOGS) is None
    interrupted = RunOutcome(run_id="r", results={0: ok(0)}, elapsed_s=1.0, interrupted=True)
    assert build.cell_error(interrupted, "cell [7]", LOGS) is None


def test_one_traceback_for_ranks_that_raised_the_same():
    error = cell_error(raised(0), raised(1), raised(2), raised(3))
    assert type(error) is CellError
    assert text(error) == (
        "ranks 0-3\n<traceback of ValueError: bad>\n\nCellError: ranks 0-3 raised ValueError: bad"
    )
    assert error.by_rank == dict.fromkeys(range(4), ("ValueError", "bad"))


def test_ranks_that_finished_are_named():
    assert text(cell_error(ok(0), raised(1), ok(2))) == (
        "rank 1\n<traceback of ValueError: bad>\n\n"
        "ranks 0,2 finished\n"
        "CellError: rank 1 raised ValueError: bad"
    )


def test_the_first_failure_comes_first():
    error = cell_error(
        raised(0, "RuntimeError", "the others are gone", at_ns=30),
        raised(1, "KeyError", "'x'", at_ns=20),
        raised(2, "RuntimeError", "the others are gone", at_ns=40),
    )
    assert text(error) == (
        "rank 1\n<traceback of KeyError: 'x'>\n\n"
        "ranks 0,2\n<traceback of RuntimeError: the others are gone>\n\n"
        "CellError: rank 1 raised KeyError: 'x'; ranks 0,2 raised RuntimeError"
    )


def test_the_headline_has_few_of_the_other_errors():
    names = ["KeyError", "OSError", "TypeError", "IndexError"]
    error = cell_error(*(raised(rank, name, at_ns=rank) for rank, name in enumerate(names)))
    assert text(error).endswith(
        "CellError: rank 0 raised KeyError: bad; rank 1 raised OSError, rank 2 raised TypeError, "
        "others raised other errors"
    )


def test_failures_of_the_same_moment_come_by_rank():
    message = text(cell_error(raised(1, evalue="b", at_ns=5), raised(0, evalue="a", at_ns=5)))
    assert message.index("rank 0") < message.index("rank 1")


def test_the_same_error_in_another_place_is_another_group():
    def at_line(rank: int, line: int) -> RankResult:
        info = ErrorInfo(ename="ValueError", evalue="bad", traceback=[f"line {line}"])
        return RankResult(rank, "error", error=info, failed_at_ns=rank)

    assert text(cell_error(at_line(0, 3), at_line(1, 9))) == (
        "rank 0\nline 3\n\nrank 1\nline 9\n\nCellError: ranks 0-1 raised ValueError: bad"
    )


def test_errors_of_one_line_are_told_together_though_each_has_its_text():
    def bad(rank: int, line: int = 2, ename: str = "ValueError", at_ns: int = 0) -> RankResult:
        text = f"bad rank {rank}"
        traceback = [f"Cell In[7], line {line}\n----> {line} check(rank)", f"{ename}: {text}"]
        info = ErrorInfo(
            ename=ename, evalue=text, traceback=traceback, site=site(line, "check(rank)")
        )
        return RankResult(rank, "error", error=info, failed_at_ns=at_ns or 9 - rank)

    error = cell_error(*map(bad, range(4)))
    assert text(error).endswith(
        "CellError: ranks 0-3 raised ValueError at cell [7], line 2 (`check(rank)`): "
        "bad rank 0 on rank 0, bad rank 1 on rank 1, bad rank 2 on rank 2, ..."
    )
    assert text(error).count("ValueError: bad rank") == 4
    # Another line or another error is another reason; equal ones keep their text.
    others = [bad(1, 5), bad(2, ename="KeyError"), replace(bad(0, at_ns=4), rank=3)]
    assert text(cell_error(bad(0, at_ns=1), *others)).endswith(
        "raised ValueError at cell [7], line 2: bad rank 0; rank 2 raised KeyError, rank 1 raised "
        "ValueError too"
    )
    # Ranks that were only freed are named separately.
    error = cell_error(bad(0), replace(bad(1), was_freed=True), bad(2), is_plain=False)
    assert text(error).endswith(
        "CellError: ranks 0,2 raised ValueError at cell [7], line 2 (`check(rank)`): "
        "bad rank 0 on rank 0, bad rank 2 on rank 2"
    )


def at_line(rank: int, line: int, evalue: str = "bad") -> RankResult:
    traceback = [f"Cell In[7], line {line}\n----> {line} check(rank)", f"ValueError: {evalue}"]
    info = ErrorInfo(
        ename="ValueError", evalue=evalue, traceback=traceback, site=site(line, "check(rank)")
    )
    return RankResult(rank, "error", error=info, failed_at_ns=rank)


def test_the_examples_of_different_messages_are_short():
    message = text(cell_error(at_line(0, 2, ""), at_line(1, 2, "a" * 99 + "\nmore")))
    assert message.endswith(f" (`check(rank)`): no text on rank 0, {'a' * 77}... on rank 1")


def test_at_most_four_tracebacks_in_full():
    message = text(cell_error(*(at_line(rank, rank + 1, f"of {rank}") for rank in range(7))))
    assert message.count("----> ") == MAX_FULL == 4
    assert message.endswith(
        "rank 4: ValueError: of 4\n"
        "rank 5: ValueError: of 5\n"
        "rank 6: ValueError: of 6\n"
        "CellError: rank 0 raised ValueError at cell [7], line 1: of 0; ranks 1-6 raised "
        "ValueError too"
    )


def test_one_place_has_one_traceback_and_a_line_for_each_message():
    results = [
        replace(at_line(rank, 2, f"bad {rank // 2}"), failed_at_ns=-rank) for rank in (2, 5, 4, 7)
    ]
    assert text(cell_error(*results)) == (
        "rank 2\nCell In[7], line 2\n----> 2 check(rank)\nValueError: bad 1\n\n"
        "ranks 4-5,7 at the same place\n"
        "  ranks 4-5 ValueError: bad 2\n"
        "  rank 7    ValueError: bad 3\n\n"
        "CellError: ranks 2,4-5,7 raised ValueError at cell [7], line 2 (`check(rank)`): "
        "bad 1 on rank 2, bad 2 on ranks 4-5, bad 3 on rank 7"
    )
    two = text(cell_error(at_line(0, 2, "bad 0"), at_line(3, 2, "bad 3")))
    assert "\nrank 3 at the same place: ValueError: bad 3\n\nCellError: " in two
    many = text(cell_error(*(at_line(rank, 2, f"bad {rank}") for rank in range(64))))
    assert many.count("----> ") == 1
    assert "\nranks 1-63 at the same place: ValueError: bad 1, bad 2, bad 3, " in many
    assert ", bad 15, bad 16, ...\n\nCellError: " in many
    long = "a message that does not fit beside others"
    many = text(cell_error(*(at_line(rank, 2, f"{long} {rank}") for rank in range(64))))
    assert f"\n  rank 16   ValueError: {long} 16\n  ranks 17-63 with other messages\n" in many
    # Only the message at the end counts, not the numbers of lines.
    assert text(cell_error(at_line(0, 2, "2"), at_line(1, 3, "3"))).count("----> ") == 2


def test_addresses_in_messages_make_no_difference():
    """Equal objects may have any address, or the same one by chance."""
    results = [
        at_line(rank, 2, f"no pickle of <function f at 0x7f00{place}>")
        for rank, place in enumerate(("aa10", "aa10", "bb30", "aa10"))
    ]
    message = text(cell_error(*results))
    assert message.startswith("ranks 0-3\nCell In[7], line 2")
    assert message.count("no pickle") == 2
    assert message.endswith(
        "ranks 0-3 raised ValueError at cell [7], line 2: no pickle of <function f at 0x7f00aa10>"
    )
    # One message from two lines has no place.
    two = text(cell_error(at_line(0, 2), at_line(1, 3)))
    assert two.endswith("CellError: ranks 0-1 raised ValueError: bad")


def test_frames_of_libraries_are_folded_where_ipython_shows_them():
    parts = {"Traceback": "", "Cell In[7], line 2": "", "File a": "torch", "File b": "contextlib"}
    parts |= {"Cell In[7], line 9": "", "File c": "torch", "ValueError: bad": ""}
    info = ErrorInfo(
        ename="ValueError",
        evalue="bad",
        traceback=[f"{part}\n" for part in parts],
        libraries=tuple(parts.values())[:-1],
    )
    results = [RankResult(rank, "error", error=info) for rank in (3, 5)]
    error = cell_error(*results)
    assert all(part in text(error) for part in parts)
    [shown] = map(plain, error._render_traceback_())
    assert shown == (
        "ranks 3,5\nTraceback\n\nCell In[7], line 2\n"
        "… 2 frames of torch, contextlib: see %ddp output -r 3\n\n"
        "Cell In[7], line 9\n"
        "… 1 frame of torch: see %ddp output -r 3\n\n"
        "ValueError: bad\n\nCellError: ranks 3,5 raised ValueError"
    )
    outcome = RunOutcome(run_id="r", results={each.rank: each for each in results}, elapsed_s=1.0)
    assert "File a\n" in build.whole_tracebacks(outcome)
    plain_error = RunOutcome(run_id="r", results={0: raised(0)}, elapsed_s=1.0)
    assert build.whole_tracebacks(plain_error) == []


def test_a_message_of_many_lines_is_short_in_the_headline():
    message = text(cell_error(raised(0, evalue="first line\nsecond line")))
    assert message.endswith("CellError: rank 0 raised ValueError: first line")
    assert text(cell_error(raised(0, evalue=""))).endswith("CellError: rank 0 raised ValueError")


def test_a_second_init_says_what_to_do():
    message = text(
        cell_error(raised(0, evalue="trying to initialize the default process group twice!"))
    )
    assert message.endswith(
        "  likely    the pool, or an earlier cell, has initialised the process group already\n"
        "  next      leave the call out, or call dist.destroy_process_group() above it, on all "
        "ranks; %ddp start --init none leaves the first call to you"
    )


@pytest.mark.parametrize(
    "evalue",
    [
        "SyncBatchNorm expected input tensor to be on GPU or XPU or privateuseone",
        "SyncBatchNorm layers only work with GPU modules",
    ],
)
def test_a_module_that_needs_gpus_says_what_works(evalue: str):
    assert text(cell_error(raised(0, evalue=evalue), raised(1, evalue=evalue))).endswith(
        "  likely    SyncBatchNorm of torch works on GPUs only\n"
        "  next      use BatchNorm (leave convert_sync_batchnorm out) on the CPU; with GPUs: %ddp "
        "stop, then %ddp start --device cuda"
    )


def test_a_port_that_is_taken_says_what_to_check():
    busy = (
        "The server socket has failed to listen on any local network address. port: 29555, "
        "useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    assert text(cell_error(raised(0, "DistNetworkError", busy), ok(1))).endswith(
        "  next      pass rank=rank, world_size=world_size; if they are right, another port, or "
        "leave init_method out"
    )


def test_a_pool_without_a_default_group_says_how_to_get_one():
    assert text(cell_error(raised(0, evalue=NO_GROUP), raised(1, evalue=NO_GROUP))).endswith(
        "  likely    ranks 0-1 have no default process group: it was destroyed, or never made\n"
        "  next      dist.init_process_group() in a cell on all ranks makes it"
    )


def test_a_rank_without_a_default_group_needs_it_anew_on_all_ranks():
    assert text(cell_error(raised(0, evalue=NO_GROUP), ok(1), is_plain=False)).endswith(
        "  likely    rank 0 has no default process group: it was destroyed, or never made\n"
        "  next      in a cell on all ranks: `if dist.is_initialized(): "
        "dist.destroy_process_group()`, then dist.init_process_group(). A call that destroys it on "
        "some ranks only has to go"
    )


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_group_that_nbddp_has_made_again_needs_no_call(lost_first: bool):
    """The ranks that have lost the connection may see it before the rank that has closed it."""
    lost = raised(0, "CollectiveFailedError", "the connection was lost", at_ns=2 - lost_first)
    gone = raised(1, evalue=NO_GROUP, at_ns=1 + lost_first)
    message = text(cell_error(lost, gone, freed(2), is_plain=False))
    assert "\nrank 0 lost the connection to another rank\n" in message
    assert message.partition("CellError: ")[2].startswith("rank 1 raised ValueError: Default")
    assert message.endswith(
        "  likely    rank 1 had no default process group any more, as after "
        "dist.destroy_process_group(). nbddp has made it again, on all ranks\n"
        "  next      remove what destroys the group, then run the cell again, without "
        "dist.init_process_group()"
    )


def test_a_second_init_of_some_ranks_says_what_makes_groups_on_all():
    twice = raised(0, evalue="trying to initialize the default process group twice!")
    assert text(cell_error(twice, freed(1), is_plain=False)).endswith(
        "  likely    rank 0 has a default process group, and other ranks have none\n"
        "  next      in a cell on all ranks: `if dist.is_initialized(): "
        "dist.destroy_process_group()`, then dist.init_process_group()"
    )


def test_a_message_with_a_full_stop_in_the_middle_of_a_headline():
    results = []
    for rank, evalue in enumerate(("must be given.", "is bad")):
        error = ErrorInfo(
            ename="ValueError", evalue=evalue, traceback=[], site=site(4, "check(rank)")
        )
        results.append(RankResult(rank, "error", error=error))
    assert ": must be given on rank 0, is bad on rank 1" in text(cell_error(*results))


# --- in the notebook -----------------------------------------------------------------------------


def test_the_notebook_shows_the_message_and_no_frames_of_nbddp():
    error = cell_error(raised(0))
    [shown] = error._render_traceback_()
    assert "\x1b[31mCellError\x1b[0m: rank 0 raised ValueError" in shown
    assert (
        text(error)
        == "rank 0\n<traceback of ValueError: bad>\n\nCellError: rank 0 raised ValueError: bad"
    )
    # The message is that of the traceback right above.
    assert (
        plain(shown)
        == "rank 0\n<traceback of ValueError: bad>\nCellError: rank 0 raised ValueError"
    )
    [shown] = cell_error(raised(0), raised(1, "KeyError", "x"))._render_traceback_()
    assert plain(shown).endswith(
        "\nCellError: rank 0 raised ValueError: bad; rank 1 raised KeyError"
    )


def test_ranks_of_a_status():
    outcome = RunOutcome("r", {0: ok(0), 1: raised(1), 2: died(2)}, 1.0)
    assert outcome.ranks("error", "exited") == RankSet.of([1, 2])


def test_a_missed_monitored_barrier_is_told_by_the_rank_that_knows():
    secondary = (
        "the connection to another member of the group was lost\nRank 1 successfully reached "
        "monitoredBarrier, but received errors while waiting for send/recv from rank 0."
    )
    missed = "[Rank 0]: Rank 2 failed to pass monitoredBarrier in 2000 ms"
    message = text(
        cell_error(
            raised(0, "RuntimeError", missed, at_ns=2),
            raised(1, "CollectiveFailedError", secondary, at_ns=1),
            ok(2),
            is_plain=False,
        )
    )
    assert "rank 1 came to monitored_barrier\n" in message
    assert "CollectiveFailedError" not in message
    assert message.endswith(f"CellError: rank 0 raised RuntimeError: {missed}")
