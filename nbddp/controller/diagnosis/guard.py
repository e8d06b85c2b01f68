"""Lets an error in the search for one kind of finding cost that kind, and not all the others.

Runs in: the notebook's process. Pure. Such an error is a bug of nbddp.
"""

from collections.abc import Callable, Iterable
from typing import TypeAlias, TypeVar

_Found = TypeVar("_Found")

#: Is called with an error of nbddp, which is being handled.
ErrorHandler: TypeAlias = Callable[[Exception], None]


class Guard:
    """Keeps what searches find, also if one of them fails.

    Args:
        on_error: is called with each error; None: errors are raised.
    """

    def __init__(self, on_error: ErrorHandler | None = None) -> None:
        self._on_error = on_error

    def found(self, search: Callable[[], Iterable[_Found]]) -> list[_Found]:
        """Return what a search finds; if it fails, what it has found until then.

        Args:
            search: gives the findings, perhaps one after another.
        """
        findings: list[_Found] = []
        with self:
            findings.extend(search())  # what came before an error stays in the list
        return findings

    def __enter__(self) -> None:
        """Guard the code of a `with` statement."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> bool:
        """Hand over an error, unless it is to be raised."""
        if self._on_error is None or not isinstance(error, Exception):
            return False
        self._on_error(error)
        return True


#: Raises all errors.
NO_GUARD = Guard()
