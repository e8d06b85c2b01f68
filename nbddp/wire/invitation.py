"""The invitation with which an agent on another machine joins a pool, and the keys that it shares.

Runs in: notebook, which makes it; programs of engines, which hand it on; agent, which reads it
(`nbddp.agent.invitation_reading`).
"""

import os
from pathlib import Path

import msgspec


class PoolKeys(msgspec.Struct, frozen=True):
    """The CURVE keys of a pool on other machines, as Z85 text; a secret."""

    server_key: str  #: the public one of the hub,
    server_secret: str  #: and its secret one, which no agent gets
    public_key: str  #: both of the agents
    secret_key: str


class Invitation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The address and keys, a secret, with which an agent on another machine joins a pool."""

    pool_id: str
    addresses: tuple[str, ...]  #: of the hub: ``tcp://10.0.0.1:5555``, in the order of trial
    token: str  #: secret that the agent shows in its first message
    server_key: str  #: CURVE keys as Z85 text: the public one of the hub,
    public_key: str  #: and both of the agents
    secret_key: str
    is_tunnelled: bool = False  #: the addresses are those of a tunnel's end, on any machine
    is_relayed: bool = False  #: the address is that of a relay, which a login node runs
    #: The notebook's process: name of its machine, pid, and start in clock ticks.
    host: str = ""
    pid: int = 0
    started: int = 0
    #: Seconds for which the agent goes on after the end of that process; 0: it ends then.
    keep_s: float = 0.0
    cwd: str = ""  #: the folder that ranks must be able to enter; empty: none was asked for

    def text(self) -> str:
        """Return it as one line, for the standard input of an agent."""
        return msgspec.json.encode(self).decode()

    def write(self, path: Path) -> None:
        """Write it, as a line, to a file that only its owner can read; the file must not exist."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{self.text()}\n")

    @classmethod
    def parse(cls, text: str | bytes) -> "Invitation":
        """Read it from text. Raises ``msgspec.MsgspecError``: the text is no invitation."""
        return msgspec.json.decode(text, type=cls)
