"""The agent on another machine: ``nbddp agent --connect FILE | - | env``.

Runs in: the agent process, its main thread.

    invitation --> connection, AgentJoined --> AdmitAgent (the number of the node) --> Agent
"""

import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from nbddp.agent import own_session
from nbddp.agent.engine_variables import batch_job, step_variables
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.invitation_reading import STDIN, ends_with_starter, read_invitation, take_lifeline
from nbddp.agent.job_time import JobWatch
from nbddp.agent.node_facts import node_facts
from nbddp.errors import AgentJoinError, BadMessageError
from nbddp.settings import AGENT_ENV, AGENT_PID_ENV, POOL_ID_ENV, USER_PYTHONPATH_ENV, Settings
from nbddp.system import network, pool_folder, process_tree
from nbddp.wire.invitation import Invitation
from nbddp.wire.message_types import NodeFacts

if TYPE_CHECKING:
    from nbddp.wire.messages import RefuseAgent

#: Time limits for the hub and for each address: an engine may be quicker than a network.
_REACH_S = 15.0
_CONNECT_S = 2.0
_RETRY_S = 0.5


def reach(invitation: Invitation) -> tuple[str, str]:
    """Find the address of the hub that this machine reaches, and its own address towards it.

    Raises:
        AgentJoinError: none is reached.
    """
    give_up_at = time.monotonic() + _REACH_S
    while True:
        address, own, failures = network.first_reachable(invitation.addresses, _CONNECT_S)
        if address:
            return address, network.own_address() if invitation.is_tunnelled else own
        if time.monotonic() >= give_up_at:
            host = socket.gethostname()
            raise AgentJoinError(
                unreachable_text(
                    host,
                    failures,
                    is_kept=invitation.keep_s > 0,
                    is_tunnelled=invitation.is_tunnelled,
                )
            )
        time.sleep(_RETRY_S)


def unreachable_text(
    host: str,
    failures: Sequence[tuple[str, str]],
    *,
    is_kept: bool,
    is_tunnelled: bool = False,
) -> str:
    """Say why no hub is reached, and what to do.

    Args:
        host: name of this machine.
        failures: addresses that were tried, and why each did not answer.
        is_kept: the pool may wait for a notebook that takes it back.
        is_tunnelled: the addresses are the ends of a tunnel on this machine.
    """
    reasons = "; ".join(f"{tried}: {reason}" for tried, reason in failures)
    if failures and all(reason == network.REFUSED for _, reason in failures):
        tried = " or ".join(address for address, _ in failures)
        hosts = [network.split_address(address)[0] for address, _ in failures]
        is_itself = all(map(network.is_loopback, hosts)) and not is_tunnelled
        looked = f"{host} is refused at {tried}: nothing listens there, since "
        step, reject = "", "; or a firewall rejects the connection"
        last = "; if it is of that one, open the port in the firewall (--port N keeps one number)"
        if is_itself:
            looked = (
                f"{host} looked for the notebook on itself, since {tried} is its own loopback, and "
                "nothing listens there: the notebook runs on another machine, or "
            )
            step = (
                f"--address with an address of the notebook's machine that {host} reaches, or "
                f"--launcher ssh --tunnel; if the notebook runs on {host}, "
            )
            reject = last = ""
        return (
            f"{looked}the pool has ended, {'it waits for %ddp attach, ' if is_kept else ''}or the "
            f"file is of an earlier one{reject}. Next: {step}"
            f"{'%ddp attach in the notebook, or ' if is_kept else ''}the file or the "
            f"line of a pool that the notebook has now (%ddp listen starts one){last}"
        )
    likely = ""
    if all(reason == network.NO_ANSWER for _, reason in failures):
        likely = ": a firewall drops the packets, or the address is not the notebook's"
    return (
        f"{host} cannot reach the notebook at {reasons} in {_REACH_S:g} s{likely}. Next: open the "
        "port in the firewall (--port N keeps one number), name another address of the notebook's "
        f"machine with --address, or, where that reaches {host} by ssh, use --launcher ssh --tunnel"
    )


def check(source: str) -> list[str]:
    """Say whether this machine could join, and join nothing: ``nbddp agent --check``.

    Raises:
        AgentJoinError: there is no invitation; or its hub is not reached, has another key, or would
            refuse this machine.
    """
    invitation = read_invitation(source)
    address, own = reach(invitation)
    facts = node_facts(own, invitation.cwd)
    answer = _meet(invitation, address, facts)
    lines = [
        f"reached    {address} from {own}"
        f" ({network.interface_towards(network.split_address(address)[0])})",
        f"host       {facts.host}",
        f"versions   Python {facts.python}, torch {facts.torch or 'is not installed'}, "
        f"nbddp {facts.nbddp}",
        f"processors {facts.cpus} of {facts.machine_cpus}, GPUs {facts.gpus}",
        f"pool       {invitation.pool_id} {answer.reason}",
    ]
    if answer.answer == "place":
        lines.append("next       the same command without --check joins it")
    if facts.engine:
        lines.append(f"started by {facts.engine}, node {facts.engine_node}")
    return lines


def _meet(invitation: Invitation, address: str, facts: NodeFacts) -> "RefuseAgent":
    """Ask the hub whether its pool needs another agent; the reason follows the pool's name.

    Raises:
        AgentJoinError: the hub does not answer, or would refuse this machine.
    """
    # `serve` loads these later.
    from nbddp.wire import codec  # noqa: PLC0415
    from nbddp.wire.channels import Poller, RemoteUplink  # noqa: PLC0415
    from nbddp.wire.messages import PROTOCOL_VERSION, AgentJoined, RefuseAgent  # noqa: PLC0415

    uplink = RemoteUplink(invitation, address, _REACH_S)
    token, pid, host = invitation.token, os.getpid(), socket.gethostname()
    uplink.send(
        AgentJoined(version=PROTOCOL_VERSION, token=token, pid=pid, facts=facts, only_asks=True)
    )
    poller = Poller()
    poller.add(uplink)
    try:
        while True:
            if reason := uplink.lost_reason():
                raise AgentJoinError(f"{host} could not join: {reason}")
            poller.wait(_RETRY_S)
            for _, frames in uplink.receive():
                with suppress(BadMessageError):
                    answer = codec.decode_agent_request(frames[0])
                    if isinstance(answer, RefuseAgent) and answer.answer == "misfit":
                        raise AgentJoinError(f"{host} could not join: {answer.reason}")
                    if isinstance(answer, RefuseAgent):
                        return answer
    finally:
        uplink.close()


def serve(source: str) -> NoReturn:
    """Join the pool of an invitation, serve it, and end this process.

    Raises:
        AgentJoinError: this machine does not reach the hub; the message says why.
        PoolStartError: there is no folder for sockets.
    """
    invitation = read_invitation(source)
    is_stdin = source == STDIN
    has_lifeline = is_stdin and ends_with_starter(sys.stdin.fileno())
    if has_lifeline and invitation.keep_s and process_tree.IS_LINUX:
        own_session.enter()
    lifeline_fd = take_lifeline(sys.stdin.fileno()) if is_stdin else -1
    address, own = reach(invitation)
    facts, started_with = node_facts(own, invitation.cwd), dict(os.environ)
    settings = Settings.from_env()
    job_watch = JobWatch(
        batch_job(started_with), facts.job_left_s, settings.job_ask_s, time.monotonic()
    )
    job_watch.advance(time.monotonic())  # the answer comes while torch loads
    for name in step_variables(os.environ):
        del os.environ[name]
    folder = pool_folder.make()
    pool_folder.hold(folder)
    pool_folder.remove_stale_folders(folder)
    tempfile.tempdir = str(folder)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_tree.adopt_orphans()
    os.environ |= {
        POOL_ID_ENV: invitation.pool_id,
        AGENT_ENV: f"{invitation.pool_id}/{socket.gethostname()}-{os.getpid()}",
        AGENT_PID_ENV: str(os.getpid()),
        USER_PYTHONPATH_ENV: os.environ.get("PYTHONPATH", ""),
    }
    maker = ProcessMaker(settings.start_method)
    maker.warm()

    from nbddp.agent.admission import join_and_serve  # noqa: PLC0415 - the fork server first
    from nbddp.agent.agent_end import end_helpers  # noqa: PLC0415 - the fork server first

    try:
        join_and_serve(
            invitation,
            address,
            facts,
            folder,
            maker=maker,
            lifeline_fd=lifeline_fd,
            environ=started_with,
            job_watch=job_watch,
        )
    except AgentJoinError as error:
        sys.stderr.write(f"nbddp: {error}\n")
        end_helpers()
        shutil.rmtree(folder, ignore_errors=True)
        sys.stderr.flush()
        # sys.exit would let multiprocessing look for files in the folder.
        os._exit(1)
