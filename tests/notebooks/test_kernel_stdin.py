"""Questions of ranks: asked in the notebook, with the rank named."""

from tests.support.kernel import Kernel


def test_input_asks_with_the_rank_named(kernel: Kernel):
    cell = kernel.run("%%ddp -r 1\nprint('got', input('name? '))", "Ada")
    assert cell.questions == ["[1]   name? "]
    assert cell.stdout == "[1]   got Ada\n"


def test_each_rank_gets_its_own_answer(kernel: Kernel):
    cell = kernel.run("%%ddp\nanswer = input('number? ')\nprint(rank, answer)", "10", "11")
    asked = [int(question[1]) for question in cell.questions]
    assert sorted(asked) == [0, 1]
    expected = {f"[{rank}]   {rank} {10 + place}" for place, rank in enumerate(asked)}
    assert set(cell.lines) == expected


def test_getpass_asks_without_echo(kernel: Kernel):
    cell = kernel.run("%%ddp -r 0\nimport getpass\nprint(len(getpass.getpass('key: ')))", "secret")
    assert cell.questions == ["[0]   key: "]
    assert cell.stdout == "[0]   6\n"


def test_printed_text_comes_before_the_question(kernel: Kernel):
    cell_id = kernel.execute("%%ddp -r 0\nprint('first')\ninput('then? ')", stdin=True)
    kernel.wait_text(cell_id, "first")
    cell = kernel.finish(cell_id, ("yes",))
    assert cell.questions == ["[0]   then? "]


def test_breakpoint_opens_a_debugger_on_the_rank(kernel: Kernel):
    cell = kernel.run(
        "%%ddp\ndef work(secret):\n    if rank == 1:\n        breakpoint()\n"
        "    return secret\nvalue = work(41)\nprint('went on', value)",
        "p secret + 1", "c",
    )  # fmt: skip
    assert all(question.startswith("[1] ") for question in cell.questions)
    assert "[1]   42" in cell.lines
    went = [line for line in cell.lines if line.endswith("went on 41")]  # together, or not
    assert went in (["[0]   went on 41", "[1]   went on 41"], ["[0-1] went on 41"])


def test_leaving_the_debugger_ends_the_cell_and_not_the_rank(kernel: Kernel):
    cell = kernel.run("%%ddp -r 0\nimport pdb\npdb.set_trace()\nprint('not', 'reached')", "q")
    assert "not reached" not in cell.text
    assert cell.questions[0].startswith("[0] ")


def test_a_rank_without_stdin_gets_an_end_of_input_that_says_why(kernel: Kernel):
    cell = kernel.run("%%ddp\ninput('anybody? ')", stdin=False)
    assert "ranks 0-1 raised EOFError at cell " in cell.error
    assert "without a user" in cell.error
    assert "input()" not in cell.text


def test_a_background_cell_has_no_stdin(kernel: Kernel):
    kernel.ok("%%ddp --async -r 0\ninput('anybody? ')")
    kernel.ok("handle = _")
    assert "EOFError" in kernel.run("await handle", stdin=True).error


def test_an_interrupt_ends_the_questions_of_all_ranks(kernel: Kernel):
    cell_id = kernel.execute("%%ddp\ninput('well? ')", stdin=True)
    kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
    kernel.interrupt()
    cell = kernel.finish(cell_id)
    assert cell.questions == []
    assert "CellInterruptedError" in cell.error


def test_a_loop_that_outlives_interrupts_is_not_left_at_its_prompt(kernel: Kernel):
    cell_id = kernel.execute(
        "%%ddp\nwhile True:\n    try:\n        input('well? ')\n"
        "    except KeyboardInterrupt:\n        pass",
        stdin=True,
    )
    for _ in range(2):
        kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
        kernel.interrupt()
    assert "CellInterruptedError" in kernel.finish(cell_id).error
    assert kernel.ok("%%ddp\nprint('again')").lines == ["[0-1] again"]


def test_a_death_of_another_rank_ends_the_question(kernel: Kernel):
    cell_id = kernel.execute(
        "%%ddp\nimport os, time\nif rank == 0:\n    input('name? ')\n"
        "else:\n    time.sleep(0.5); os._exit(4)",
        stdin=True,
    )
    kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
    cell = kernel.finish(cell_id)
    assert cell.error.startswith("RankExitedError: rank 1 exited with code 4 while it ran")
    kernel.ok("%ddp restart")
    assert kernel.run("%%ddp -r 0\nprint(input('again? '))", "yes").stdout == "[0]   yes\n"


def test_a_timeout_ends_the_question(kernel: Kernel):
    cell_id = kernel.execute("%%ddp -r 0 --timeout 1\ninput('well? ')", stdin=True)
    kernel.wait_for(lambda: kernel.question(cell_id) is not None, "the question")
    assert "CellTimeoutError" in kernel.finish(cell_id).error
    kernel.ok("%%ddp\nprint(rank)")
