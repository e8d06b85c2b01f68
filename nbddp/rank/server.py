"""The server of a rank, which takes requests one after another.

Runs in: the rank process, main thread, on an asyncio event loop that also runs tasks which the
user's cells leave there.

    nbddp-io --call_soon_threadsafe--> RankServer --> CellExecutor, Variables --> Link
"""

import asyncio
import atexit
import os
import traceback
from contextlib import suppress
from functools import partial
from typing import TypeAlias, assert_never

import torch
import torch.distributed as dist

import nbddp
from nbddp.rank import environment, torch_private
from nbddp.rank.agent_link import Link
from nbddp.rank.cells import (
    CellExecutor,
    ImportReports,
    NameLookupThread,
    RankShell,
    Stdin,
    end_steps,
    imported_library,
    open_stop_debugger,
)
from nbddp.rank.cells.debug_adapter import DebugAdapter, leave_stop
from nbddp.rank.collectives import Collectives
from nbddp.rank.exception_text import error_info
from nbddp.rank.values import Variables, hash_of_tensor
from nbddp.rank.widget_comms import Comms
from nbddp.settings import PREDEFINED_NAMES
from nbddp.wire.flight_recorder import NodeMemory
from nbddp.wire.launch_specs import RankLaunch
from nbddp.wire.message_types import ErrorInfo
from nbddp.wire.messages import (
    AbortOperations,
    AskWhileStuck,
    BindPushed,
    CommToRank,
    Complete,
    Debug,
    DescribeAtPrompt,
    DescribeRank,
    DescribeValue,
    Execute,
    FaultStruck,
    ForgetValue,
    GroupsRebuilt,
    InputReply,
    Inspect,
    InterruptCallback,
    OutputDrained,
    PullValue,
    PushValue,
    RankReady,
    RankRequest,
    RebuildGroups,
    ReleaseSegment,
    RunFinished,
    Shutdown,
    ValueDescribed,
    ValuePulled,
    ValuePushed,
)

#: Requests that the main thread serves, one after another.
_Work: TypeAlias = (
    Execute
    | PullValue
    | DescribeValue
    | ForgetValue
    | PushValue
    | BindPushed
    | ReleaseSegment
    | RebuildGroups
)


class RankServer:
    """One rank."""

    def __init__(self, launch: RankLaunch) -> None:
        self._launch = launch
        self._init_count = 0
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self.link = Link(launch.agent_address, launch.identity, self._receive)
        self._shell = RankShell.instance(link=self.link, rank=launch.rank)
        self._stdin = Stdin(self._shell, self.link)
        self._name_lookup = NameLookupThread(self._shell, self.link)
        self._debug_adapter = DebugAdapter(self._shell, self.link, self._loop)
        self._collectives = self._make_collectives()
        self._executor = CellExecutor(
            self._shell, self.link, self._loop, launch.rank, self._collectives
        )
        self._executor.interrupts.before_raise = leave_stop
        self._executor.error_stops.note = self._stdin.note_error_stop
        if self._collectives is not None:
            stops = self._collectives.stops
            stops.ask = self._stdin.ask_stop
            stops.debug = partial(open_stop_debugger, rank=launch.rank)
            stops.end_debugging = end_steps
            stuck_prompt = self._collectives.stuck_prompt
            stuck_prompt.ask, stuck_prompt.names = self._stdin.ask_stuck, self._shell.user_ns
            sanitizer = self._collectives.sanitizer
            sanitizer.replicas.hash_of = sanitizer.reads.hash_of = hash_of_tensor
            stops.interrupts = lambda: self._executor.interrupts.received
            self._collectives.faults.interrupts = stops.interrupts
            self._collectives.faults.tell = self._tell_fault
        self._variables = Variables(self._shell, self.link, launch, self._executor.interrupts)
        if self._collectives is not None:
            self._collectives.stops.describe = self._variables.describe_at_prompt
        self._comms = Comms(self._shell, self.link, self._loop, self._executor.interrupts)
        self._busy = asyncio.Lock()
        self._imports = ImportReports(self._shell, self.link, launch.rank)
        self.link.while_busy = self._while_busy

    def _tell_fault(self, number: int, text: str) -> None:
        run_id = self._shell.run_id
        if run_id is not None:
            self.link.send_in_order(
                FaultStruck(run_id=run_id, rank=self._launch.rank, number=number, text=text)
            )

    def _while_busy(self) -> None:
        # They read frames and files of the user. Without this thread the rank would be lost.
        with suppress(Exception):
            self._imports.look()
            if self._collectives is not None:
                self._collectives.note_line()

    def _make_collectives(self) -> Collectives | None:
        launch = self._launch
        if launch.records is None:
            return None  # --plain
        memory = NodeMemory.attach(launch.records.take(), launch.pool.nproc_per_node)
        collectives = Collectives(
            launch, memory, self._shell.cell_of, self._shell.callbacks, imported_library
        )
        return collectives if collectives.install() else None

    def serve(self) -> None:
        """Initialise, report it, and serve requests until the rank has to end."""
        launch = self._launch
        self.link.start()
        collectives = self._collectives
        wait = None if collectives is None else collectives.factory.store_wait.wait_for_store
        torch_private.separate_rendezvous(self._next_prefix, wait)
        device, backend, note = environment.choose_device(launch)
        self._initialise = lambda: environment.init_process_group(launch, backend)
        if device.startswith("cuda"):
            torch.cuda.set_device(device)
        if not launch.joins:
            self._initialise()
        self._stdin.install()
        self._comms.install()
        values = (
            launch.rank,
            launch.pool.world_size,
            launch.local_rank,
            launch.pool.nproc_per_node,
            torch.device(device),
            torch,
            dist,
            nbddp,
        )
        predefined = dict(zip(PREDEFINED_NAMES, values, strict=True))
        self._shell.predefine(predefined)
        if collectives is not None:
            collectives.stops.names = predefined
        self.link.send(
            RankReady(
                rank=launch.rank,
                pid=os.getpid(),
                local_rank=launch.local_rank,
                device=device,
                backend=backend if dist.is_initialized() else "",
                note=note,
            )
        )
        self._serve_until_stopped()

    def _serve_until_stopped(self) -> None:
        self._stopping = False
        while not self._stopping:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                # A task of the user has raised it; asyncio passes it on to the caller of the loop.
                continue
        self.link.close()
        atexit._run_exitfuncs()  # the handlers that cells registered; os._exit would skip them

    def _next_prefix(self) -> str:
        """Return the key prefix of the next ``init_process_group``, equal on all ranks of a cell.

        The count begins at each cell, which keeps ranks in step after one of them failed alone.
        """
        if self._shell.run_id != self._last_run_id:
            self._last_run_id = self._shell.run_id
            self._init_count = 0
        self._init_count += 1
        cell = self._shell.run_id or (
            f"rebuild-{self._rebuild_number}" if self._rebuild_number else "start"
        )
        return f"nbddp/{self._launch.pool.generation}/{cell}/{self._init_count}"

    _last_run_id: str | None = None
    _rebuild_number = 0  #: number of the `RebuildGroups` that has initialised the default group

    def _receive(self, request: RankRequest, buffers: list[bytes]) -> None:
        """Take a request. Called by the I/O thread."""
        match request:
            case InputReply() | DescribeAtPrompt():
                self._stdin.answer(request)
            case AskWhileStuck():
                self._ask_while_stuck(request)
            case Shutdown():
                self._loop.call_soon_threadsafe(self._stop)
            case DescribeRank() | AbortOperations():
                self._answer_at_once(request)
            case Execute() | RebuildGroups() | PullValue() | DescribeValue() | ForgetValue():
                self._loop.call_soon_threadsafe(self._begin, request, buffers)
            case PushValue() | BindPushed() | ReleaseSegment():
                self._loop.call_soon_threadsafe(self._begin, request, buffers)
            case Complete() | Inspect():
                self._name_lookup.put(request)
            case InterruptCallback():
                self._shell.callbacks.interrupt()
            case CommToRank():
                self._comms.receive(request, buffers)
            case Debug():
                self._debug_adapter.handle(request)
            case OutputDrained():
                pass  # the link itself takes it
            case _:
                assert_never(request)

    def _ask_while_stuck(self, request: AskWhileStuck) -> None:
        is_here = self._shell.run_id in (request.run_id, None)  # None: it has ended the cell
        if self._collectives is not None and is_here:
            self._collectives.stuck_prompt.open(request.run_id)

    def _answer_at_once(self, request: DescribeRank | AbortOperations) -> None:
        if self._collectives is None:
            return
        try:
            self.link.send(self._collectives.answer(request))
        except Exception:  # noqa: BLE001 - a bug in nbddp must not end the I/O thread
            traceback.print_exc()

    def _stop(self) -> None:
        self._stopping = True
        self._loop.stop()

    def _begin(self, request: _Work, buffers: list[bytes]) -> None:
        task = self._loop.create_task(self._serve_one(request, buffers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    #: The event loop itself holds tasks only weakly.
    _tasks: "set[asyncio.Task[None]]" = set()  # noqa: RUF012 - one server per process

    async def _serve_one(self, request: _Work, buffers: list[bytes]) -> None:
        async with self._busy:
            try:
                await self._dispatch(request, buffers)
            except BaseException as error:  # noqa: BLE001 - each request must get an answer
                self._answer_failure(request, error_info(error))

    async def _dispatch(self, request: _Work, buffers: list[bytes]) -> None:
        match request:
            case Execute():
                await self._executor.execute(request)
                torch_private.forget_failed_groups()
            case PullValue():
                self._variables.pull(request)
            case DescribeValue():
                self._variables.describe(request)
            case ForgetValue():
                self._variables.forget()
            case PushValue():
                self._variables.push(request, buffers)
            case BindPushed():
                self._variables.bind(request)
            case ReleaseSegment():
                self._variables.release(request)
            case RebuildGroups():
                torn: tuple[str, ...] = ()
                if self._collectives is not None:
                    if request.initialises:
                        self._rebuild_number, self._init_count = request.number, 0
                    self._collectives.rebuild(request, self._initialise)
                    torn = tuple(self._collectives.recorder.torn)
                rank = self._launch.rank
                self.link.send(GroupsRebuilt(number=request.number, rank=rank, torn=torn))
            case _:
                assert_never(request)

    def _answer_failure(self, request: _Work, error: ErrorInfo) -> None:
        rank = self._launch.rank
        match request:
            case Execute():
                self._shell.run_id = None
                self.link.is_busy = False
                self.link.send(
                    RunFinished(run_id=request.run_id, rank=rank, elapsed_s=0.0, error=error)
                )
            case PullValue():
                self.link.send(
                    ValuePulled(request_id=request.request_id, rank=rank, value=None, error=error)
                )
            case DescribeValue():
                self.link.send(
                    ValueDescribed(
                        request_id=request.request_id, rank=rank, answer=None, error=error
                    )
                )
            case PushValue():
                self.link.send(ValuePushed(request_id=request.request_id, rank=rank, error=error))
            case RebuildGroups():
                self.link.send(GroupsRebuilt(number=request.number, rank=rank, error=error))
            case ForgetValue() | BindPushed() | ReleaseSegment():
                pass  # these requests have no answer
            case _:
                assert_never(request)
