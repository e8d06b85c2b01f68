"""The facts that the sanitizer saw on one rank during a cell; see docs/sanitizer.md.

Runs in: every process. Pure. `nbddp.controller.diagnosis` writes the English.
"""

from typing import Final, Literal, TypeAlias

from nbddp.wire.flight_recorder.data_reads import LoaderReads
from nbddp.wire.flight_recorder.schema import Operation, Site, _Part

SanitizerFindingKind: TypeAlias = Literal[
    "write",  #: a buffer of an open operation was written
    "resize",  #: a buffer of an open operation got other memory
    "read",  #: the result of an open operation was read
    "overlap",  #: an operation was issued on memory of an open one
    "not-awaited",  #: no code can wait for an operation any more, or none has until the end
    "not-finite",  #: an operation was given NaN or Inf
]


class SanitizerFinding(_Part, frozen=True):
    """One use of a tensor that the sanitizer of a rank objects to."""

    kind: SanitizerFindingKind
    operation: Operation  #: the open one, or the one that was given NaN or Inf
    site: Site = Site()  #: the line that touched its memory; without a line: not known
    function: str = ""  #: of torch, by which the line touched it: ``add_``
    other: Operation | None = None  #: the second operation on the same memory
    #: What was touched is written by the open operation: one that is given a copy does not give the
    #: code its result.
    needs_result: bool = False
    has_handle: bool = False  #: not awaited, but a later cell can wait for it
    value: Literal["", "NaN", "Inf"] = ""  #: what is not finite
    caller: Site = Site()  #: of NaN or Inf: the line that called the function of ``site``
    parameter: str = ""  #: the one whose gradient it is: ``'net.0.weight' of Model``
    #: CLOCK_REALTIME of the access, of the call with NaN or Inf, or of one that was not awaited.
    time_ns: int = 0


class StepStart(_Part, frozen=True):
    """Hashes from before a step whose line is another than that of the step before."""

    step: int  #: its number in the cell
    digest: bytes  #: of all tensors
    details: bytes  #: of each tensor
    states: bytes  #: of each of `ReplicaSteps.states`; zeros: the optimizer had none


class ReplicaSteps(_Part, frozen=True):
    """Hashes of a replica, before the first and after each step of the optimizers that have it.

    Without an optimizer: at the first reduction of its gradients, or else at its first step, and at
    the end of the cell. Its sites have the line that reduces them. A DDP model has such hashes of
    all its parameters, also if optimizers step it.
    """

    pg_id: str  #: of the group of the model
    number: int  #: of the model among those of its group
    optimizer_number: int  #: of the optimizer among those that have stepped the model
    model: str  #: class of the model
    #: The class of each optimizer that has stepped the same parameters, by their first steps. The
    #: states are those of the one that has stepped last. Empty: the code updates the parameters.
    optimizers: tuple[str, ...]
    tensors: tuple[str, ...]  #: names of the parameters
    digests: bytes  #: for each step one digest of all tensors
    details: bytes  #: for the first steps, as many as fit, a hash of each tensor
    newest: bytes  #: the same for the last step
    buffers: tuple[str, ...]  #: names of buffers that the cell has not changed
    buffer_hashes: bytes  #: at the end of the cell
    states: tuple[str, ...]  #: names of the tensors that the optimizer keeps for parameters
    #: At the end of the cell; empty: another optimizer has stepped some of the parameters since.
    state_hashes: bytes
    #: Of the optimizer, ``lr=0.1, momentum=0.9``, by the first step after which they were seen;
    #: empty: not known from this step on.
    settings: tuple[str, ...]
    setting_steps: tuple[int, ...]  #: these steps
    sites: tuple[Site, ...]  #: the lines of the steps
    site_of_step: bytes  #: the index of the line of each step
    #: The lines that called each of ``sites``, the innermost first: one line may be there twice.
    callers: tuple[tuple[Site, ...], ...] = ()
    starts: tuple[StepStart, ...] = ()  #: of the first steps in another line
    #: The line that added up copies of all gradients before the first step, which used gradients
    #: that were not changed since; without a line: it used what was added up.
    copy_site: Site = Site()
    #: Parameters whose gradients that line has left out, while it added up others of their layers.
    left_out: tuple[str, ...] = ()
    #: Its gradients were added up only in part, or as copies, or optimizers have stepped others and
    #: not it: ranks may have models of their own.
    may_be_own: bool = False
    is_ddp: bool = False  #: it is a DDP model
    #: The line that has stepped it in this cell before its gradients were reduced first.
    early_site: Site = Site()
    #: Later steps, of which no hashes were taken: there were too many. Then ``newest`` is of the
    #: end of the cell.
    later_steps: int = 0
    #: States that the optimizer kept after its first step, and keeps no more at the end.
    lost_states: tuple[str, ...] = ()
    #: The index of the optimizer of each step, as in ``site_of_step``; empty: there is one.
    optimizer_of_step: bytes = b""


#: Length of a hash, and of a digest of several.
HASH_BYTES: Final = 8


class SanitizerReport(_Part, frozen=True):
    """The facts that the sanitizer saw on a rank in a cell."""

    findings: tuple[SanitizerFinding, ...] = ()
    replicas: tuple[ReplicaSteps, ...] = ()
    reads: tuple[LoaderReads, ...] = ()  #: of ``--sanitize data``
    only_data: bool = False  #: ``--sanitize data``: nothing else was checked
    spent_ns: int = 0  #: time that its checks took
    after_ns: int = 0  #: the part of it after the code of the cell, and its `elapsed_s`, had ended
