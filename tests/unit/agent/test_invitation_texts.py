"""The texts of an agent that has no invitation, or does not reach the notebook of one."""

from pathlib import Path

import pytest

from nbddp.agent.invitation_reading import read_invitation
from nbddp.agent.remote import unreachable_text
from nbddp.errors import AgentJoinError
from nbddp.system import network


def test_nothing_listens_any_more():
    failures = [("tcp://10.0.0.1:5", network.REFUSED)]
    ended = unreachable_text("n1", failures, is_kept=False)
    assert (
        "is refused at tcp://10.0.0.1:5: nothing listens there, since the pool has ended" in ended
    )
    assert "is of an earlier one; or a firewall rejects the connection. Next: the file or" in ended
    assert (
        "if it is of that one, open the port in the firewall (--port N keeps one number)" in ended
    )
    kept = unreachable_text("n1", failures, is_kept=True)
    assert "the pool has ended, it waits for %ddp attach, or the file is of an earlier one" in kept
    assert "Next: %ddp attach in the notebook, or the file" in kept


@pytest.mark.parametrize("content", ["", "{damaged"])
def test_a_damaged_file_has_a_next_step(tmp_path: Path, content: str):
    path = tmp_path / "p.json"
    path.write_text(content)
    with pytest.raises(AgentJoinError, match=r"this is no invitation.*Next: the file whose path"):
        read_invitation(str(path))


def test_a_variable_has_a_next_step(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("NBDDP_CONNECT", raising=False)
    with pytest.raises(AgentJoinError, match=r"is not set. Next: NBDDP_CONNECT=\"\$\(cat FILE\)\""):
        read_invitation("env")
    monkeypatch.setenv("NBDDP_CONNECT", "zz")
    with pytest.raises(AgentJoinError, match=r"this is no invitation.*Next: NBDDP_CONNECT="):
        read_invitation("env")


def test_a_machine_that_looks_on_itself_is_told_so():
    failures = [("tcp://127.0.0.1:5", network.REFUSED)]
    text = unreachable_text("n1", failures, is_kept=False)
    assert text.startswith(
        "n1 looked for the notebook on itself, since tcp://127.0.0.1:5 is its own loopback, and "
        "nothing listens there: the notebook runs on another machine, or the pool has ended, or "
        "the file is of an earlier one. Next: --address with an address of the notebook's machine "
        "that n1 reaches, or --launcher ssh --tunnel; if the notebook runs on n1, the file or the "
    )
    tunnelled = unreachable_text("n1", failures, is_kept=False, is_tunnelled=True)
    assert tunnelled.startswith("n1 is refused at tcp://127.0.0.1:5: nothing listens there")
