"""Adds the ranks' widgets to the answer when a reloaded page asks for all widgets at once.

Runs in: the notebook's process, the kernel's thread that handles the request.

If the notebook's process has imported ipywidgets, a front end asks ipywidgets for all states, and
the page loses all other widgets. (Without ipywidgets, a front end asks the kernel for its comms,
one by one.)
"""

from collections.abc import Callable
from typing import Any

_TARGET = "jupyter.widget.control"

#: States by model; the paths of their binary parts, and these parts.
WidgetStates = tuple[dict[str, dict[str, Any]], list[list[Any]], list[bytes]]
GetStates = Callable[[], WidgetStates]
CommTarget = Callable[[Any, dict[str, Any]], None]


class _ControlComm:
    """A control comm of ipywidgets whose messages also get the ranks' widgets."""

    def __init__(self, comm: Any, states: GetStates) -> None:
        self._comm = comm
        self._states = states

    def send(self, data: dict[str, Any], *arguments: Any, **options: Any) -> None:
        """Send a message, and add the ranks' models to a list of states."""
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


class _ControlTarget:
    """Replaces the comm target function of ipywidgets."""

    def __init__(self, original: CommTarget, states: GetStates) -> None:
        self.original = original
        self._states = states

    def __call__(self, comm: Any, msg: dict[str, Any]) -> None:
        self.original(_ControlComm(comm, self._states), msg)


def answer_with(comm_manager: Any, states: GetStates) -> None:
    """Add ``states`` to the answers of ipywidgets, if it is imported.

    Args:
        comm_manager: the kernel's comm manager.
        states: returns ``model_name``, ``model_module``, ``model_module_version`` and ``state`` by
            model, and their binary parts.
    """
    target = comm_manager.targets.get(_TARGET)
    if isinstance(target, _ControlTarget):
        target = target.original  # an earlier pool has replaced it
    if target is not None:
        comm_manager.targets[_TARGET] = _ControlTarget(target, states)
