"""`%ddp output`: what a cell printed is shown again."""

from tests.support.kernel import Kernel


def _page(kernel: Kernel, code: str) -> str:
    return "".join(message.text for message in kernel.ok(code).page)


def test_the_output_of_a_cell_is_shown_again(kernel: Kernel):
    cell = kernel.ok("%%ddp\nprint('hello', rank)\nprint('all')")
    first = "".join(message.text for message in cell.page)
    again = _page(kernel, "%ddp output")
    assert again.startswith(first)
    assert "ended well on ranks 0-1" in again.removeprefix(first)
    of_rank = _page(kernel, "%ddp output -r 1")
    assert "hello 1" in of_rank
    assert "hello 0" not in of_rank


def test_a_cell_that_raised_is_shown_with_its_traceback(kernel: Kernel):
    kernel.run("%%ddp\nprint('before', rank)\nif rank == 1: raise ValueError('bad batch')")
    again = _page(kernel, "%ddp output")
    for text in ("before 0", "bad batch", "rank 1 raised; rank 0 ended well"):
        assert text in again


def test_ranks_that_only_waited_have_not_raised(kernel: Kernel):
    kernel.run("%%ddp\nif rank == 1: raise ValueError('bad batch')\ndist.barrier()")
    assert "s: rank 1 raised; rank 0 waited and was freed\n" in _page(kernel, "%ddp output")
    kernel.run("%%ddp\nif rank == 0: dist.barrier()")
    assert "s: rank 0 waited and was freed; rank 1 ended well\n" in _page(kernel, "%ddp output")


def test_lines_of_ranks_stand_in_the_order_of_the_cell(kernel: Kernel):
    cell = kernel.run(
        "%%ddp\nfor i in range(3): print('line', i, 'of', rank)\nif rank == 0: dist.barrier()"
    )
    lines = [f"[{rank}]   line {i} of {rank}" for i in range(3) for rank in (0, 1)]
    assert cell.lines == lines
    again = kernel.ok("%ddp output")
    assert again.lines[:6] == lines
    assert [each.text for each in again.of("display_data")] == [
        each.text for each in cell.of("display_data")
    ]


def test_displays_and_cleared_output_are_shown_as_they_were(kernel: Kernel):
    kernel.ok(
        "%%ddp\nfrom IPython.display import HTML, clear_output, display\n"
        "for step in range(3):\n    clear_output(wait=True)\n"
        "    display(HTML(f'<b>step {step} of rank {rank}</b>'))"
    )
    again = str([message.content.get("data") for message in kernel.ok("%ddp output").page])
    for rank in (0, 1):
        assert f"step 2 of rank {rank}" in again
    assert "step 1" not in again


def test_a_running_cell_is_shown_so_far(kernel: Kernel):
    kernel.ok("%%ddp --async\nprint('so far', rank)\nimport time\nwhile True: time.sleep(0.02)")
    kernel.wait_for(lambda: "so far" in _page(kernel, "%ddp output"))
    assert "has been running since" in _page(kernel, "%ddp output")
    kernel.ok("%ddp interrupt")


def test_bad_lines_say_what_is_kept(kernel: Kernel):
    kernel.ok("%%ddp -r 0\nprint('only rank 0')")
    error = kernel.run("%ddp output 999").error
    assert "cell [999] is not kept" in error
    assert "Kept: [" in error
    error = kernel.run("%ddp output -r 1").error
    assert "ran on rank 0, and not on rank 1" in error
