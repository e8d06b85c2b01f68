"""Tab and Shift-Tab in ``%%ddp`` cells."""

import signal
from typing import Any

import psutil
import pytest

from tests.support.kernel import LIMIT_S, Kernel
from tests.support.polling import poll_until
from tests.support.pool_processes import stop

MODEL = (
    "%%ddp\n"
    "class Net(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2))\n"
    "net = Net()\n"
    "losses = {'train_loss': 1, 'test_loss': 2}\n"
    "def halve(value):\n"
    "    'Give half of it.'\n"
    "    return value / 2\n"
    "if rank == 1:\n"
    "    only_here = 1"
)


@pytest.fixture
def named(shared_kernel: Kernel) -> Kernel:
    """The ranks have names; the notebook has others."""
    shared_kernel.ok("only_in_notebook = 1")
    shared_kernel.ok(MODEL)
    return shared_kernel


def _reply(kernel: Kernel, msg_id: str) -> dict[str, Any]:
    while True:
        reply = kernel.client.get_shell_msg(timeout=LIMIT_S)
        if reply["parent_header"]["msg_id"] == msg_id:
            content: dict[str, Any] = reply["content"]
            return content


def complete(kernel: Kernel, code: str, cursor: int | None = None) -> dict[str, Any]:
    return _reply(kernel, kernel.client.complete(code, cursor))


def completed(kernel: Kernel, code: str) -> list[str]:
    """The cell after each of the matches, at the mark ``|``."""
    cursor = code.index("|")
    code = code.replace("|", "")
    found = complete(kernel, code, cursor)
    return [
        code[: found["cursor_start"]] + match + code[found["cursor_end"] :]
        for match in found["matches"]
    ]


def inspect(kernel: Kernel, code: str) -> dict[str, Any]:
    cursor = code.index("|")
    return _reply(kernel, kernel.client.inspect(code.replace("|", ""), cursor))


@pytest.mark.parametrize(
    ("code", "after"),
    [
        ("los|", "losses"),
        ("torch.nn.functional.rel|", "torch.nn.functional.relu"),
        ("net.lay|", "net.layers"),
        ("net.layers[0].weight.sh|", "net.layers[0].weight.shape"),
        ("print(net.lay|)", "print(net.layers)"),
        ("losses['tr|", "losses['train_loss"),
        ("fresh_name = 1\nfresh|", "fresh_name = 1\nfresh_name"),
        ("'\U0001f600'; print(los|)", "'\U0001f600'; print(losses)"),
        ("%timei|", "%timeit"),
    ],
)
def test_names_of_the_rank_complete(named: Kernel, code: str, after: str):
    assert f"%%ddp\n{after}" in completed(named, f"%%ddp\n{code}")


def test_names_complete_below_a_comment_and_the_magic(named: Kernel):
    assert "# all\n\n%%ddp\nlosses" in completed(named, "# all\n\n%%ddp\nlos|")


def test_a_name_that_the_rank_does_not_have_does_not(named: Kernel):
    assert completed(named, "%%ddp\nonly_in_note|") == []
    assert completed(named, "only_in_note|") == ["only_in_notebook"]
    assert completed(named, "los|") == []


def test_matches_tell_their_kind_where_front_ends_look_for_it(named: Kernel):
    found = complete(named, "%%ddp\nlosses", None)
    types = found["metadata"]["_jupyter_types_experimental"]
    assert [(each["text"], each["start"], each["end"]) for each in types] == [("losses", 6, 12)]


def test_the_first_rank_of_the_cell_is_asked(named: Kernel):
    assert completed(named, "%%ddp -r 1\nonly_h|") == ["%%ddp -r 1\nonly_here"]
    assert completed(named, "%%ddp -r 0,1\nonly_h|") == []


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("%%ddp --as|", "%%ddp --async"),
        ("%%ddp -r 0 --time|", "%%ddp -r 0 --timeout"),
        ("%ddp sta|", "%ddp start"),
        ("%ddp sta|", "%ddp stacks"),
        ("%ddp start --ba|", "%ddp start --backend"),
        ("%ddp trace --l|", "%ddp trace --last"),
        ("%ddp config on_dea|", "%ddp config on_deadlock=report"),
        ("%ddp start --device c|", "%ddp start --device cpu"),
        ("%%ddp --out ra|", "%%ddp --out ranks"),
        ("%ddp auto of|", "%ddp auto off"),
        ("%ddp auto on --out q|", "%ddp auto on --out quiet"),
        ("x = %ddp pu|", "x = %ddp pull"),
        ("x = %ddp pull net.lay|", "x = %ddp pull net.layers"),
        ("%ddp pull -r 0 net.lay|", "%ddp pull -r 0 net.layers"),
        ("%ddp vars rank los|", "%ddp vars rank losses"),
        ("%ddp push only_in_note|", "%ddp push only_in_notebook"),
        ("1\n%ddp rest|", "1\n%ddp restart"),
        ("%%ddp --as|\nprint(1)", "%%ddp --async\nprint(1)"),
    ],
)
def test_verbs_and_options_complete(named: Kernel, line: str, after: str):
    assert after in completed(named, line)


@pytest.mark.parametrize("line", ["%ddp pull losses -r |", "%ddp stop |", "%ddp dance |"])
def test_nothing_is_offered_where_no_word_is_legal_or_known(named: Kernel, line: str):
    assert completed(named, line) == []


def test_inspection_shows_what_the_rank_has(named: Kernel):
    found = inspect(named, "%%ddp\nhal|ve(1)")
    assert found["found"]
    assert "Give half of it." in found["data"]["text/plain"]
    assert not inspect(named, "%%ddp\nonly_in_note|book")["found"]
    assert not inspect(named, "hal|ve")["found"]
    assert inspect(named, "only_in_note|book")["found"]


def test_completion_and_inspection_answer_while_the_rank_runs_a_cell(named: Kernel):
    named.ok("%%ddp --async\ncount = 0\nwhile True: count += 1")
    named.ok("handle = _")
    assert poll_until(lambda: completed(named, "%%ddp\ncoun|")) == ["%%ddp\ncount"]
    assert inspect(named, "%%ddp\nhal|ve")["found"]
    ended = named.run("handle.interrupt()\nawait handle")
    assert "KeyboardInterrupt" in ended.error


def test_completion_is_unchanged_without_the_extension(named: Kernel):
    named.ok(
        "from nbddp.notebook.magics import completion\nkernel = get_ipython().kernel\n"
        "completion.uninstall(get_ipython())"
    )
    assert named.value("'do_complete' in vars(kernel)") == "False"
    assert completed(named, "%%ddp\nonly_in_note|") == ["%%ddp\nonly_in_notebook"]
    named.ok("completion.install(get_ipython())")
    assert completed(named, "%%ddp\nonly_in_note|") == []


def test_the_hook_of_the_terminal_says_the_same(named: Kernel):
    named.ok(
        "shell = get_ipython()\nshell.Completer.custom_matchers.append(completion._match)\n"
        "from IPython.core.completer import provisionalcompleter\n"
        "def ask(code):\n"
        "    with provisionalcompleter():\n"
        "        found = list(shell.Completer.completions(code, len(code)))\n"
        "    return [code[: each.start] + each.text for each in found]"
    )
    try:
        assert named.value(r"ask('%%ddp\nx = losse')") == r"['%%ddp\nx = losses']"
        assert named.value("ask('%ddp restar')") == "['%ddp restart']"
    finally:
        named.ok("shell.Completer.custom_matchers.remove(completion._match)")


def test_a_pool_that_is_gone_delays_nothing(named: Kernel):
    named.ok("from nbddp.notebook import session\nwaiting = session._current")
    named.ok("session._current = None")
    try:
        assert completed(named, "%%ddp\nonly_in_note|") == ["%%ddp\nonly_in_notebook"]
        assert not inspect(named, "%%ddp\nhal|ve")["found"]
    finally:
        named.ok("session._current = waiting")
    assert completed(named, "%%ddp\nlosse|") == ["%%ddp\nlosses"]


def test_the_notebook_completes_where_the_rank_does_not_answer(named: Kernel):
    rank = psutil.Process(
        int(named.ok("%%ddp -r 0\nimport os\nprint(os.getpid())").text.split()[-1])
    )
    stop(rank)
    try:
        assert completed(named, "%%ddp\nonly_in_note|") == ["%%ddp\nonly_in_notebook"]
    finally:
        rank.send_signal(signal.SIGCONT)
    assert poll_until(lambda: completed(named, "%%ddp\nlosse|")) == ["%%ddp\nlosses"]
