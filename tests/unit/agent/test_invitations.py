"""Invitations on standard input: their line, and which inputs end with the starter of an agent."""

import os
from pathlib import Path

from nbddp.agent.invitation_reading import ends_with_starter, has_starter_ended, take_lifeline
from nbddp.wire.invitation import Invitation
from tests.support.examples import plain_example

_INVITATION = plain_example(Invitation)


def test_the_file_is_one_line_since_an_agent_reads_one_from_an_open_pipe(tmp_path: Path):
    path = tmp_path / "ab12.json"
    _INVITATION.write(path)
    text = path.read_text()
    assert text == f"{_INVITATION.text()}\n"
    assert "\n" not in text[:-1]
    assert Invitation.parse(text) == _INVITATION


def test_the_end_of_a_pipe_tells_of_its_writer_and_the_end_of_a_file_nothing(tmp_path: Path):
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w"), (tmp_path / "file").open("w") as file:
        assert ends_with_starter(read)
        assert not ends_with_starter(file.fileno())


def test_a_file_with_the_invitation_is_left_to_no_process_that_follows(tmp_path: Path):
    path = tmp_path / "ab12.json"
    _INVITATION.write(path)
    with path.open() as file:
        assert take_lifeline(file.fileno()) == -1
        assert os.path.samestat(os.fstat(file.fileno()), Path(os.devnull).stat())


def test_a_pipe_stays_as_a_descriptor_that_ranks_do_not_get():
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as starter:
        lifeline_fd = take_lifeline(read)
        try:
            assert os.path.samestat(os.fstat(read), Path(os.devnull).stat())
            assert not os.get_inheritable(lifeline_fd)
            starter.close()
            assert os.read(lifeline_fd, 1) == b""
        finally:
            os.close(lifeline_fd)


def test_the_end_of_a_starter_is_seen_behind_what_it_has_written():
    read, write = os.pipe()
    with os.fdopen(read), os.fdopen(write, "w") as starter:
        assert not has_starter_ended(-1)
        assert not has_starter_ended(read)
        starter.write("more\n")
        starter.flush()
        assert not has_starter_ended(read)
        starter.write("x" * 9000)
        starter.close()
        assert has_starter_ended(read)
