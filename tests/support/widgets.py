"""A client that plays the front end of widgets that live in ranks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nbddp.controller.pool.pool import Pool
from nbddp.wire.messages import Output
from tests.support.kernel import Cell, Kernel, Message
from tests.support.polling import poll_until
from tests.support.views import run_cell

_LIMIT_S = 30.0
WIDGET = "application/vnd.jupyter.widget-view+json"


class FrontEnd:
    """The models that a front end would have, and its way of talking to them."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def messages(self) -> list[Message]:
        return [message for cell in self.kernel.cells.values() for message in cell.messages]

    @property
    def models(self) -> dict[str, dict[str, Any]]:
        """States of what is open, by id."""
        found: dict[str, dict[str, Any]] = {}
        for message in self.messages():
            comm_id = message.content.get("comm_id", "")
            data = message.content.get("data", {})
            if message.kind == "comm_open":
                found[comm_id] = dict(data["state"])
            elif message.kind == "comm_close":
                found.pop(comm_id, None)
            elif message.kind == "comm_msg" and data.get("method") == "update":
                found[comm_id].update(data["state"])
        return found

    def tree(self, model_id: str) -> Any:
        """The content of a view: kinds of models, with the values of texts and sliders."""
        state = self.models[model_id.removeprefix("IPY_MODEL_")]
        kind = state["_model_name"].removesuffix("Model")
        if "children" in state:
            return [kind, *(self.tree(child) for child in state["children"])]
        return (kind, state.get("value"))

    def ids(self, kind: str) -> list[str]:
        return [i for i, state in self.models.items() if state["_model_name"] == f"{kind}Model"]

    def of_rank(self, block_id: str, rank: int) -> str:
        """The model that stands behind the label of ``rank``."""
        for row_id in self.models[block_id]["children"]:
            label, child = self.models[row_id.removeprefix("IPY_MODEL_")]["children"]
            if f"[{rank}]" in self.models[label.removeprefix("IPY_MODEL_")]["value"]:
                return str(child).removeprefix("IPY_MODEL_")
        raise AssertionError(f"rank {rank} is not in {self.tree(block_id)}")

    def send(self, comm_id: str, data: dict[str, Any], subshell: str | None = None) -> str:
        session = self.kernel.client.session
        message = session.msg("comm_msg", {"comm_id": comm_id, "data": data})
        if subshell is not None:
            message["header"]["subshell_id"] = subshell
        self.kernel.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def move(self, comm_id: str, value: Any) -> None:
        state = {"method": "update", "state": {"value": value}, "buffer_paths": []}
        self.send(comm_id, state)


@contextmanager
def playing(kernel: Kernel) -> Iterator[FrontEnd]:
    """A front end; the kernel's relay of widgets must not fail meanwhile."""
    yield FrontEnd(kernel)
    kernel.ok(
        "from nbddp.notebook import session\n"
        "assert session._relay.failure is None, repr(session._relay.failure)"
    )


def now(front: FrontEnd, cell: Cell) -> Cell:
    """The cell as it is now: later ones may have changed its displays."""
    later = [m for m in front.messages() if m.kind == "update_display_data"]
    return Cell(messages=[*cell.messages, *(m for m in later if m not in cell.messages)])


def views(cell: Cell) -> list[dict[str, Any]]:
    """The bundles that are left and show a living widget."""
    return [m.content["data"] for m in cell.page if WIDGET in m.content.get("data", {})]


def only_view(cell: Cell) -> dict[str, Any]:
    found = views(cell)
    assert len(found) == 1, cell
    return found[0]


class Slider:
    """A slider on each rank, whose observer runs ``body``."""

    def __init__(self, pool: Pool, body: str, before: str = "") -> None:
        self._pool = pool
        lines = "".join(f"    {line}\n" for line in body.splitlines())
        run_cell(
            pool,
            f"import ipywidgets, time\n{before}\ndef changed(change):\n{lines}"
            "slider = ipywidgets.IntSlider()\nslider.observe(changed, 'value')",
        )
        self._ids = pool.pull("slider.comm.comm_id")
        self._values = iter(range(1, 100))
        self.printed: list[Output] = []
        pool.listeners.background = lambda event: (
            self.printed.append(event) if isinstance(event, Output) else None
        )

    def move(self, rank: int) -> None:
        data = {"method": "update", "state": {"value": next(self._values)}, "buffer_paths": []}
        content = {"comm_id": self._ids[rank], "data": data}
        self._pool.talk.send_comm(rank, "comm_msg", content, {}, [])

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.printed)

    def wait_text(self, text: str) -> None:
        def is_there() -> bool:
            assert text in self.text, self.text
            return True

        poll_until(is_there, _LIMIT_S)
