"""A kept pool whose agents connect to an address that this machine has no longer."""

import pytest

from nbddp.controller.pool import taken_back
from nbddp.errors import PoolAttachError
from nbddp.system.kept_pools import MachinesRecord

#: Documentation only (RFC 5737): no machine has it.
_GONE = "192.0.2.77"


def test_the_network_that_is_missing_is_named_and_no_other_program():
    record = MachinesRecord(
        notebook_host="a",
        address=_GONE,
        port=5555,
        keys=dict.fromkeys(("server_key", "server_secret", "public_key", "secret_key"), "0" * 40),
        hosts=("b",),
        pids=(1,),
    )
    with pytest.raises(PoolAttachError) as caught:
        taken_back._channel_of("p7", record)
    assert str(caught.value) == (
        f"the agents of pool p7 connect to {_GONE}:5555, and this machine does not have the "
        f"address {_GONE} now. Next: connect this machine to the network in which it had the "
        "address, and attach again; the pool ends by itself when its time is over"
    )
