"""`%ddp detach`, `attach` and `pools` in real kernels; a kernel is shut down, as by a restart."""

import re
from collections.abc import Iterator

import pytest

from tests.support.kept_site import KeptSite, kept_site
from tests.support.kernel import running_kernel
from tests.support.polling import poll_until


@pytest.fixture
def site() -> Iterator[KeptSite]:
    with kept_site() as made:
        yield made


def flat(text: str) -> str:
    """Without line breaks."""
    return " ".join(text.split())


def test_a_pool_survives_the_shutdown_of_its_kernel(site: KeptSite):
    with running_kernel(TMPDIR=str(site.folder)) as first:
        first.ok("%load_ext nbddp")
        started = first.ok("%ddp start -n 2 --keep 1h")
        assert "goes on for 1h after the end of this kernel: %ddp attach" in flat(started.text)
        first.ok("%%ddp\nx = rank + 10")
        cell_id = first.execute("%%ddp --async\nimport time\nprint('in')\ntime.sleep(3)\nx += 1\nx")
        first.wait_text(cell_id, "in")
        first.shutdown()  # Jupyter interrupts a cell in the foreground before that
    with running_kernel(TMPDIR=str(site.folder)) as second:
        second.ok("%load_ext nbddp")
        assert "%ddp attach takes back" in flat(second.run("%ddp status").error)
        assert "detached" in second.ok("%ddp pools").text
        attached = second.execute("handle = %ddp attach\nhandle")
        second.wait_text(attached, "[1]   Out: 12")
        cell = second.finish(attached)
        assert cell.text.index("attached: pool") < cell.text.index("of the last kernel, with")
        assert cell.text.index("of the last kernel, with") < cell.text.index("in\n")
        second.ok("handle.wait()")
        (row,) = (each for each in second.ok("%ddp pools").text.splitlines() if "this one" in each)
        assert second.value("%ddp pull x") == "[11, 12]"
        second.ok("%%ddp\ndist.barrier()")
        assert "[1]   Out: 12" in second.ok("%ddp output 4").text
        second.ok("%ddp stop")
        assert row.split()[0] not in second.ok("%ddp pools").text
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_a_pool_is_detached_with_a_background_cell_and_attached_again(site: KeptSite):
    with running_kernel(TMPDIR=str(site.folder)) as kernel:
        kernel.ok("%load_ext nbddp")
        assert "no pool is running" in kernel.run("%ddp detach").error
        assert "no pool of yours is detached" in kernel.run("%ddp attach").error
        kernel.ok("%ddp start -n 2")
        assert "is not a duration" in flat(kernel.run("%ddp detach --keep soon").error)
        assert "Next: %ddp stop, or %ddp detach" in flat(kernel.run("%ddp attach").error)
        kernel.ok("%%ddp\nmine = rank")
        begun = kernel.execute("%%ddp --async\nimport time\nprint('in')\ntime.sleep(1000)")
        kernel.wait_text(begun, "in")
        kernel.ok("left = _")
        detached = kernel.ok("%ddp detach")
        kernel.wait_text(begun, "let go by %ddp detach")
        assert "CellError" not in kernel.cells[begun].text
        assert "cell [" in flat(detached.text)
        assert "(2h), then it ends" in flat(detached.text)
        # A cell starts another pool, and says that this one waits.
        other = flat(kernel.ok("%%ddp\npass").text)
        assert "no pool was running, so one was started" in other
        assert "goes on without a kernel" in other
        lacks = flat(kernel.run("%%ddp\nmine").text)
        assert re.search(r"cell \[\d+\], which defines mine, ran on pool \w+, which goes on", lacks)
        assert re.search(r"Next: %ddp stop, then %ddp attach \w+ takes it back; or run", lacks)
        assert "which defines" not in flat(kernel.run("%%ddp\nnobodys").text)
        kernel.ok("%ddp stop")
        poll_until(lambda: "let go by %ddp detach after" in kernel.ok("print(left)").text)
        assert "handle that %ddp attach gives" in flat(kernel.run("left.wait()").error)
        again = kernel.ok("%ddp start -n 1").text  # a reader may have forgotten the pool
        assert "goes on without a kernel until" in flat(again)
        kernel.ok("%ddp stop")
        attached = kernel.ok("%ddp attach")
        assert "] of this kernel, with" in attached.text
        its_handle = f"Next: Out[{attached.number}].wait(), or %ddp interrupt"
        assert its_handle in flat(kernel.run("%%ddp\nrank").error)
        kernel.ok("%ddp detach")
        assert "] of this kernel, with" in kernel.ok("h = %ddp attach").text
        assert "Next: h.wait(), or %ddp interrupt" in flat(kernel.run("%%ddp\nrank").error)
        assert "running" in kernel.ok("print(h)").text
        kernel.ok("%ddp interrupt")
        assert "CellInterruptedError" in kernel.run("h.wait()").error
        assert kernel.value("%ddp pull rank") == "[0, 1]"
        kernel.ok("%ddp stop")
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_the_cell_of_a_pool_without_keep_comes_back_from_its_beginning(site: KeptSite):
    with running_kernel(TMPDIR=str(site.folder)) as kernel:
        kernel.ok("%load_ext nbddp")
        kernel.ok("%ddp start -n 2")
        done = site.folder / "done"
        begun = kernel.execute(
            f"%%ddp --async\nimport os, time\nprint('first')\n"
            f"while not os.path.exists({str(done)!r}): time.sleep(0.05)\nprint('last')"
        )
        kernel.wait_text(begun, "first")
        kernel.ok("%ddp detach")
        assert "ranks 0-1 went on without this kernel" in kernel.ok("%ddp output").text
        done.touch()
        attached = kernel.ok("%ddp attach --wait").text
        assert attached.index("[0-1] first") < attached.index("[0-1] last")
        again = kernel.ok("%ddp output").text
        assert again.index("[0-1] first") < again.index("[0-1] last")
        assert "ended well on ranks 0-1" in again
        kernel.ok("%ddp stop")
    site.wait_until_nothing_runs()


@pytest.mark.full
def test_the_question_of_a_cell_is_asked_again_in_the_next_kernel(site: KeptSite):
    with running_kernel(TMPDIR=str(site.folder)) as first:
        first.ok("%load_ext nbddp")
        first.ok("%ddp start -n 2 --keep 1h")
        code = "%%ddp\nname = input('name? ') if rank == 1 else 'Bob'"
        asks = first.execute(code, stdin=True)
        first.wait_for(lambda: first.question(asks) is not None, "the question")
        first.process.kill()
    with running_kernel(TMPDIR=str(site.folder)) as second:
        second.ok("%load_ext nbddp")
        cell = second.run("%ddp attach --wait", "Ada")
        assert cell.status == "ok", cell.error
        assert re.search(r"cell \[\d+\] was done at \d\d:\d\d, after \d+\.\d s", flat(cell.text))
        assert second.value("%ddp pull name") == "['Bob', 'Ada']"
        second.ok("%ddp stop")
    site.wait_until_nothing_runs()
