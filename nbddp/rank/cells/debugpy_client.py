"""A rank under debugpy: requests of a front end, answered by ipykernel's `Debugger`.

Runs in: the rank process, thread ``nbddp-debug``. Importing this loads debugpy.

    DebugAdapter --request--> RankDebugger --Adapter, TCP--> debugpy's adapter --> debugpy

ipykernel connects to the adapter by a ZeroMQ socket, and has its shell thread start debugpy. Here
the connection is a stream of asyncio, and the event loop of the main thread starts debugpy.
"""

import asyncio
import atexit
import inspect
import itertools
import json
import logging
import multiprocessing
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import debugpy
import IPython
import traitlets
from ipykernel.compiler import get_file_name, get_tmp_directory
from ipykernel.debugger import Debugger

import nbddp

_HEADER_END = b"\r\n\r\n"
#: debugpy answers at once, unless Python is stopped in C.
_ANSWER_S = 20.0
#: Steps skip the code that runs the cell, and the code that records its collectives. Between two
#: statements of a cell IPython calls modules of the standard library.
_MACHINERY = (
    *(
        f"{Path(str(module.__file__)).parent}{os.sep}**"
        for module in (nbddp, IPython, traitlets, asyncio, multiprocessing)
    ),
    f"{Path(os.__file__).parent}{os.sep}*.py",
    "<string>",
)


class AdapterLostError(Exception):
    """The connection to debugpy's adapter has ended."""


class Adapter:
    """A client of debugpy's adapter, with the methods that `Debugger` calls."""

    def __init__(self, on_event: Callable[[dict[str, Any]], None]) -> None:
        self._on_event = on_event
        self._address: tuple[str, int] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._initialized = asyncio.Event()
        self._reader_task: asyncio.Task[None] | None = None

    def get_host_port(self) -> tuple[str, int]:
        """Return the address at which debugpy listens."""
        if self._address is None:
            raise AdapterLostError("debugpy does not listen")
        return self._address

    async def connect(self, address: tuple[str, int]) -> None:
        """Connect to debugpy, which listens at ``address``."""
        self.disconnect_tcp_socket()
        self._address = address
        reader, self._writer = await asyncio.open_connection(*address)
        self._initialized.clear()
        self._reader_task = asyncio.get_running_loop().create_task(self._read(reader))

    def disconnect_tcp_socket(self) -> None:
        """End the connection; debugpy still listens."""
        if self._reader_task is not None:
            self._reader_task.cancel()
        if self._writer is not None:
            self._writer.close()
        self._reader_task = self._writer = None
        self._fail_all()

    async def send_dap_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, and return the response.

        Raises:
            AdapterLostError: the connection to debugpy has ended.
            TimeoutError: debugpy did not answer in time.
        """
        if request["command"] != "attach":
            return await self._ask(request)
        # The response to ``attach`` arrives after the client has sent ``configurationDone``.
        attaching = asyncio.ensure_future(self._ask(request))
        initialized = asyncio.ensure_future(self._initialized.wait())
        await asyncio.wait({attaching, initialized}, return_when=asyncio.FIRST_COMPLETED)
        initialized.cancel()
        if not attaching.done():
            await self._ask({"type": "request", "command": "configurationDone"})
        return await attaching

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._writer is None:
            raise AdapterLostError("no connection to debugpy")
        # The numbers are ours: a front end may use one twice, and `Debugger` sends requests too.
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        body = json.dumps({**request, "seq": number}).encode()
        try:
            self._writer.write(b"Content-Length: %d" % len(body) + _HEADER_END + body)
            response = await asyncio.wait_for(answer, _ANSWER_S)
        finally:
            del self._waiting[number]
        return {**response, "request_seq": request.get("seq", number)}

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                header = await reader.readuntil(_HEADER_END)
                length = int(header.partition(b":")[2].split()[0])
                self._handle_message(json.loads(await reader.readexactly(length)))
        except (asyncio.IncompleteReadError, ConnectionError):
            self._fail_all()

    def _handle_message(self, message: dict[str, Any]) -> None:
        if message["type"] == "event":
            if message["event"] == "initialized":
                self._initialized.set()
            self._on_event(message)
            return
        answer = self._waiting.get(message.get("request_seq", 0))
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _fail_all(self) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(AdapterLostError("the connection to debugpy has ended"))


class RankDebugger(Debugger):
    """Debugs this process.

    Args:
        on_event: called with the events of debugpy.
        listen: makes debugpy listen, in the main thread; returns the address.
    """

    def __init__(
        self,
        on_event: Callable[[dict[str, Any]], None],
        listen: Callable[[], "asyncio.Future[Any]"],
    ) -> None:
        arguments = {
            "log": logging.getLogger(__name__),
            "debugpy_stream": None,
            "event_callback": on_event,
            "shell_socket": None,
            "session": None,
            "kernel_modules": list(_MACHINERY),
            "just_my_code": False,
            "filter_internal_frames": True,
        }
        parameters = inspect.signature(Debugger.__init__).parameters  # versions differ in these
        super().__init__(**{name: value for name, value in arguments.items() if name in parameters})
        self._adapter = Adapter(self._handle_event)
        self.debugpy_client = self._adapter  # type: ignore[assignment]  # has the methods in use
        self._listen = listen
        self._address: tuple[str, int] | None = None
        self.folder = get_tmp_directory()  #: folder of the files that hold the text of cells

    async def process_request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Answer a request.

        Raises:
            AdapterLostError: the connection to debugpy has ended.
            TimeoutError: debugpy did not answer in time.
        """
        if message["command"] == "initialize" and not self.is_started:
            if self._address is None:
                self._address = await self._listen()
            await self._adapter.connect(self._address)
        response: dict[str, Any] = await super().process_request(message)
        if message["command"] == "continue":
            self.stopped_threads.clear()  # debugpy sends no event after this request
        return response

    def file_of(self, code: str) -> str:
        """Return the file name of a cell with this text."""
        return str(Path(self.folder) / Path(get_file_name(code)).name)

    async def debugInfo(self, message: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - its name
        """Return the facts that a front end needs. Called by `Debugger`."""
        response: dict[str, Any] = await super().debugInfo(message)
        response["body"]["tmpFilePrefix"] = f"{self.folder}{os.sep}"
        return response

    async def dumpCell(self, message: dict[str, Any]) -> dict[str, Any]:  # noqa: N802 - its name
        """Write the file of a cell. Called by `Debugger`."""
        file = self.file_of(message["arguments"]["code"])
        Path(file).write_text(message["arguments"]["code"], encoding="utf-8")
        return {
            "type": "response",
            "request_seq": message["seq"],
            "success": True,
            "command": message["command"],
            "body": {"sourcePath": file},
        }

    async def serve_stops(self) -> None:
        """Report threads that stop, forever; `Debugger` leaves this task to its user."""
        while True:
            await self.handle_stopped_event()

    def start(self) -> bool:
        """Prepare a session after the connection to the adapter. Called by `Debugger`.

        IPython's own transformers stay.
        """
        folder = Path(self.folder)
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
            if self.folder == get_tmp_directory():  # other processes use another folder as well
                atexit.register(shutil.rmtree, folder, ignore_errors=True)
        self.debugpy_initialized = True
        return True

    def stop(self) -> None:
        """Disconnect from the adapter. Called by `Debugger` after ``disconnect``."""
        self._adapter.disconnect_tcp_socket()


def listen() -> tuple[str, int]:
    """Make debugpy listen; returns the address. Call it in the main thread, which debugpy notes."""
    debugpy.configure(subProcess=False, python=sys.executable)
    host, port = debugpy.listen(("127.0.0.1", 0))
    return host, int(port)
