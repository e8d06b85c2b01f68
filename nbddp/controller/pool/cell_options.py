"""The options of one cell.

Runs in: the notebook's process. Pure.
"""

from dataclasses import dataclass

from nbddp.wire.fault_types import Fault
from nbddp.wire.rank_set import RankSet

#: A cell of a script.
NO_NAME = "the cell"


@dataclass(frozen=True)
class Replay:
    """Facts about cells that run again, so that fresh ranks get their variables."""

    name: str  #: cells of one replay share the namespaces
    aside: RankSet  #: ranks that only take part, in a namespace that is thrown away


@dataclass(frozen=True)
class CellOptions:
    """The options of one cell. For the notebook layer."""

    ranks: RankSet  #: the cell runs on these
    timeout_s: float | None = None  #: seconds until the cell is interrupted; None: never
    execution_count: int = 1  #: number of the cell, in tracebacks and in the trace
    first_line: int = 1  #: line of the notebook's cell on which the code begins
    cell_name: str = NO_NAME  #: how messages name the cell
    check: bool = False  #: ranks of several machines compare operations before each
    step: bool = False  #: ranks stop before each operation, and the user lets them go
    faults: tuple[Fault, ...] = ()  #: faults on purpose
    sanitize: bool = False  #: ranks check what the code does with tensors of operations
    sanitize_data: bool = False  #: ranks note what data loaders read, and it is compared
    asks: bool = True  #: the user can be asked: break points stop it
    parent_id: str = ""  #: id of the front end's request
    replay: Replay | None = None  #: it runs again for fresh ranks

    @property
    def needs_traces(self) -> str:
        """Why the cell needs operations that are traced; empty: it does not."""
        if self.step:
            return "--step stops ranks before their operations"
        if self.faults:
            return "--fault strikes at operations that are traced"
        is_sanitized = self.sanitize or self.sanitize_data
        return "--sanitize checks the operations of ranks" if is_sanitized else ""
