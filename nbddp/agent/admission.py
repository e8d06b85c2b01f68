"""Joins a pool on another machine: says hello, waits for a node, becomes its agent.

Runs in: the agent process, its main thread, once the fork server has started.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from msgspec.structs import replace

from nbddp.agent.agent import Agent
from nbddp.agent.agent_end import serve_and_exit
from nbddp.agent.detachment import OtherMachine
from nbddp.agent.engine_variables import BatchJob, batch_job
from nbddp.agent.fork_server import ProcessMaker
from nbddp.agent.invitation_reading import has_starter_ended
from nbddp.agent.job_time import JobWatch
from nbddp.agent.lifeline_thread import LifelineThread
from nbddp.errors import AgentJoinError, BadMessageError
from nbddp.settings import AGENT_SAYS
from nbddp.wire import codec
from nbddp.wire.channels import Poller, RemoteUplink
from nbddp.wire.invitation import Invitation
from nbddp.wire.launch_specs import AgentLaunch
from nbddp.wire.message_types import AgentEnd, NodeFacts
from nbddp.wire.messages import (
    PROTOCOL_VERSION,
    AdmitAgent,
    AgentEnded,
    AgentJoined,
    GreetAgent,
    RefuseAgent,
    ShutdownAgent,
)

#: Until the hub has said how long it may be silent, this long.
_JOIN_PATIENCE_S = 120.0
_TICK_S = 0.5
#: Signals that end an agent: its engine, Ctrl-C in its terminal, the end of the terminal.
_END_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class NotJoinedError(AgentJoinError):
    """This agent has no place in the pool.

    Args:
        text: for the user.
        end: for the hub, which perhaps has given it a place already.
    """

    def __init__(self, text: str, end: AgentEnd) -> None:
        super().__init__(text)
        self.end = end


def join_and_serve(
    invitation: Invitation,
    address: str,
    facts: NodeFacts,
    folder: Path,
    *,
    maker: ProcessMaker,
    lifeline_fd: int,
    environ: Mapping[str, str],
    job_watch: JobWatch,
) -> NoReturn:
    """Join, serve, and end this process.

    Args:
        invitation: of the hub.
        address: the one of its addresses that this machine reaches.
        facts: about this machine.
        folder: for sockets and logs; removed at the end.
        maker: makes processes.
        lifeline_fd: the agent ends when its end is reached; -1: there is none.
        environ: the variables that the agent was started with.
        job_watch: asks for the end of the job around it.

    Raises:
        AgentJoinError: the hub has refused this agent, or has ended.
    """
    if has_starter_ended(lifeline_fd):  # before the hub has a place for it
        raise _without_starter()
    signals: list[int] = []  # noted only: an exception in any line would skip the goodbye
    ends = list(_END_SIGNALS)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # by `nohup`
        ends.remove(signal.SIGHUP)
    for number in ends:
        signal.signal(number, lambda which, _: signals.append(which))
    uplink = RemoteUplink(invitation, address, _JOIN_PATIENCE_S)
    facts_at = time.monotonic()
    job_watch.advance(facts_at)
    facts = replace(facts, job_left_s=job_watch.left_s(facts_at))
    job_watch.is_news = False
    uplink.send(
        AgentJoined(version=PROTOCOL_VERSION, token=invitation.token, pid=os.getpid(), facts=facts)
    )

    def greeted(missing: int) -> None:
        nodes = "1 other node" if missing == 1 else f"{missing} other nodes"
        _say(facts.host, f"has reached {address}, and waits for {nodes}")

    try:
        admitted = admission(uplink, lifeline_fd, signals, greeted, job_watch)
    except NotJoinedError as error:
        uplink.send(AgentEnded(node=-1, end=error.end))
        uplink.close(linger_s=0.5)
        raise
    uplink.patience_s = max(admitted.settings.patience_s, invitation.keep_s)
    launch = AgentLaunch(
        hub=address,
        token=invitation.token,
        pool_id=invitation.pool_id,
        node=admitted.node,
        folder=str(folder),
        controller_pid=0,
        settings=admitted.settings,
        keep_s=invitation.keep_s,
    )
    job = batch_job(environ)
    lifeline_thread = LifelineThread(admitted.node, 0, maker)
    job_watch.ask_every(admitted.settings.job_ask_s, time.monotonic())
    lifeline_thread.follow_job(job_watch)
    lifeline_thread.start()
    machine = OtherMachine(
        facts,
        facts_at,
        lambda: RemoteUplink(invitation, address, launch.settings.patience_s, is_waiting=True),
    )
    agent = Agent(launch, maker, lifeline_thread, uplink, machine)
    if lifeline_fd >= 0:
        agent.detachment.follow_starter(lifeline_fd, agent.end_without_hub)
    for number in ends:
        signal.signal(number, lambda which, _: agent.end_without_hub(_end_by(which, job)))
    for noted in signals:
        agent.end_without_hub(_end_by(noted, job))
    _say(facts.host, f"node {admitted.node} of {admitted.nnodes} of pool {invitation.pool_id}")
    serve_and_exit(agent, folder)


def _end_by(number: int, job: BatchJob) -> AgentEnd:
    """Return how a signal ends an agent; Slurm takes its node away by SIGTERM."""
    if number == signal.SIGTERM and job.scheduler == "slurm":
        return AgentEnd("taken-away", number, job.name)
    return AgentEnd("signal", number)


def _say(host: str, text: str) -> None:
    sys.stderr.write(f"{AGENT_SAYS}{host}: {text}\n")


def _without_starter() -> NotJoinedError:
    return NotJoinedError(
        "not joined: standard input has ended, as it does when the program that started this agent "
        "ends. Next, if you have started it: nbddp agent --connect - < FILE, or --connect FILE",
        AgentEnd("starter-ended"),
    )


def admission(
    uplink: RemoteUplink,
    lifeline_fd: int,
    signals: list[int],
    greeted: Callable[[int], None],
    job_watch: JobWatch,
) -> AdmitAgent:
    """Wait until the hub gives this agent a node.

    Args:
        uplink: the connection, which has the hello of this agent.
        lifeline_fd: the agent ends when its end is reached; -1: there is none.
        signals: those that have come, and come.
        greeted: called with the number of agents that have not come.
        job_watch: asks for the end of the job meanwhile.

    Raises:
        NotJoinedError: the hub gives it none, or this agent has to end.
    """
    poller = Poller()
    poller.add(uplink)
    if lifeline_fd >= 0:
        poller.add(lifeline_fd)
    while True:
        poller.wait(_TICK_S)
        job_watch.advance(time.monotonic())
        for _, frames in uplink.receive():
            try:
                request = codec.decode_agent_request(frames[0])
            except BadMessageError:
                continue
            if isinstance(request, RefuseAgent):
                text = f"the notebook has refused this agent: {request.reason}"
                raise NotJoinedError(text, AgentEnd("refused"))
            if isinstance(request, ShutdownAgent):
                raise NotJoinedError(
                    "not joined: the start of the pool was interrupted, or has failed, before all "
                    "agents had come. Next: start the pool again in the notebook, then this agent "
                    "with the line or the file that it shows then",
                    AgentEnd("asked"),
                )
            if isinstance(request, GreetAgent):
                greeted(request.missing)
            if isinstance(request, AdmitAgent):
                return request
        if signals:
            text = f"not joined: it was ended by {signal.Signals(signals[0]).name}"
            raise NotJoinedError(text, AgentEnd("signal", signals[0]))
        if reason := uplink.lost_reason():
            raise NotJoinedError(f"not joined: {reason}", AgentEnd("notebook-lost"))
        if has_starter_ended(lifeline_fd):
            raise _without_starter()
