"""Long lines of nbddp are broken at blanks, and never inside a command to copy."""

import pytest

from nbddp.line_breaks import WIDTH, with_line_breaks, wrapped

COMMANDS = [
    "Next: %ddp stop",
    "Next: %ddp catchup -r 1 --cells 3,",
    "Next: %ddp break all_reduce #24 --group tp,",
    "Next: %ddp break line 7 --cell 3",
    "Next: %ddp start -n 4 --cwd /tmp --plain",
    "Next: %ddp config on_deadlock=debug",
    "then %ddp start --launcher ssh --hosts a,b",
    "%%ddp --fault 'rank 1: skip the next barrier'",
    "`with torch.no_grad(): p -= lr * p.grad`",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_stays_in_one_line(command: str):
    for length in range(WIDTH):
        words = ("word " * WIDTH)[:length].strip()
        text = f"{words} {command} and more words of a sentence that comes after it, to its end"
        assert command in with_line_breaks(text)
        assert command in "\n".join(wrapped(text, 60, indent=4, first_indent=2))


def test_a_long_word_is_read_once():
    """To read it again from each of its letters would take minutes."""
    word = "x" * 300_000
    assert wrapped(f"no value: {word}, see %ddp vars", 60, indent=2) == [
        "no value:",
        f"  {word},",
        "  see %ddp vars",
    ]


def test_a_sentence_has_the_room_of_its_line():
    lines = wrapped("one two-three " * 20, 40, indent=4, first_indent=2)
    assert max(map(len, lines)) <= 40
    assert lines[0].startswith("  one")
    assert all(line.startswith("    ") for line in lines[1:])
    assert " ".join(lines).split() == ("one two-three " * 20).split()
