"""Cards in a terminal: colours where it shows them."""

import sys
from collections.abc import Callable

import pytest

from nbddp.notebook.output import TerminalSink

CARD = (
    "Deadlock: ranks 1-3 never called barrier #2\n"
    "  > ranks 1-3 have finished the cell\n"
    "    rank 0 has waited in barrier #2\n"
    "  Now: rank 0 is freed"
)


@pytest.fixture
def shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    def show(
        text: str, card_id: str | None, *, is_terminal: bool = True, no_color: str = ""
    ) -> str:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
        monkeypatch.setenv("NO_COLOR", no_color)
        TerminalSink().display({"text/plain": text}, {}, card_id, False)
        return capsys.readouterr().out

    return show


def test_the_title_and_the_ranks_of_a_card_have_colours(shown: Callable[..., str]):
    assert shown(CARD, "nbddp-card-1") == (
        "\x1b[1;31mDeadlock:\x1b[0m ranks 1-3 never called barrier #2\n"
        "  > \x1b[1mranks 1-3\x1b[0m have finished the cell\n"
        "    \x1b[1mrank 0\x1b[0m has waited in barrier #2\n"
        "  Now: rank 0 is freed\n"
    )


def test_there_are_none_where_nobody_sees_or_wants_them(shown: Callable[..., str]):
    assert shown(CARD, "nbddp-card-1", is_terminal=False) == f"{CARD}\n"
    assert shown(CARD, "nbddp-card-1", no_color="1") == f"{CARD}\n"
    assert shown(CARD, None) == f"{CARD}\n"
    assert "\x1b" not in shown("\x1b[2Jtext", None)
