"""A page that is loaded again asks for all widgets at once: those of ranks are told, too.

Runs in: the notebook's process, thread of the kernel that takes the question.

Where the notebook's process has imported ipywidgets, a front end asks that, and what it does not
name is gone for the page. (Elsewhere a front end asks the kernel for its comms, one by one.)
"""

from collections.abc import Callable
from typing import Any

_TARGET = "jupyter.widget.control"

#: States by model; where in them the binary parts belong, and those.
Told = tuple[dict[str, dict[str, Any]], list[list[Any]], list[bytes]]
States = Callable[[], Told]
Opened = Callable[[Any, dict[str, Any]], None]


class _Completed:
    """A control comm, as ipywidgets sees it: what it says is completed by us."""

    def __init__(self, comm: Any, states: States) -> None:
        self._comm = comm
        self._states = states

    def send(self, data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Send a message, with our models beside its own."""
        if data.get("method") == "update_states":
            states, paths, buffers = self._states()
            data = {
                **data,
                "states": {**states, **data["states"]},
                "buffer_paths": [*(data.get("buffer_paths") or ()), *paths],
            }
            options["buffers"] = [*(options.get("buffers") or ()), *buffers]
        self._comm.send(data, *arguments, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._comm, name)


class _Answering:
    """Stands in for ipywidgets' own function."""

    def __init__(self, own: Opened, states: States) -> None:
        self.own = own
        self._states = states

    def __call__(self, comm: Any, msg: dict[str, Any]) -> None:
        self.own(_Completed(comm, self._states), msg)


def answer_with(comm_manager: Any, states: States) -> None:
    """Have ``states`` told along with those of ipywidgets, if that is imported by now.

    Args:
        comm_manager: of the kernel.
        states: ``model_name``, ``model_module``, ``model_module_version`` and ``state`` by model,
            and their binary parts.
    """
    own = comm_manager.targets.get(_TARGET)
    if isinstance(own, _Answering):
        own = own.own  # of a pool that was there before
    if own is not None:
        comm_manager.targets[_TARGET] = _Answering(own, states)
