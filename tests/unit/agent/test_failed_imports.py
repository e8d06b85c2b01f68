"""A process whose torch cannot be imported says why, where the agent looks for it."""

import os
from typing import Any

import pytest

from nbddp.agent import fork_server
from nbddp.wire.launch_specs import InheritedFd, RankLaunch, StoreLaunch


@pytest.mark.parametrize(("kind", "field"), [(RankLaunch, "stderr"), (StoreLaunch, "answer")])
def test_the_agent_gets_the_reason_of_an_import_that_fails(
    kind: Any, field: str, monkeypatch: pytest.MonkeyPatch
):
    def fail(name: str) -> None:
        raise ImportError("libcudart.so.13: no such file")

    monkeypatch.setattr("importlib.import_module", fail)
    read, write = os.pipe()
    launch = kind(**dict.fromkeys(kind.__dataclass_fields__, 0) | {field: InheritedFd(write)})
    with pytest.raises(ImportError):
        fork_server._enter("nbddp.rank.main", launch)
    os.close(write)
    with os.fdopen(read) as told:
        assert told.read().strip().endswith("ImportError: libcudart.so.13: no such file")
