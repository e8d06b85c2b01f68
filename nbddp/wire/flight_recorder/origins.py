"""The names of operations that a feature of a library has called for the user.

Runs in: every process. Pure. An *origin* is a feature: a key of `_PHRASES`, or the name of a class
or package, such as ``Join`` or ``accelerate``.
"""

from collections.abc import Mapping
from typing import Final

#: `%ddp catchup` gives all ranks the states of a rank's random generators.
RANDOM_NUMBERS: Final = "nbddp-random-numbers"
#: For each origin: the phrase for sentences, and the few words for tables.
_PHRASES: Final[Mapping[str, tuple[str, str]]] = {
    "DTensor": ("DTensor's exchange of shards", "DTensor"),
    "Join": ("Join's exchange between the ranks", "Join"),
    "batch-statistics": ("SyncBatchNorm's statistics", "SyncBatchNorm"),
    "ddp-buckets": ("the order of the gradients", "order of gradients"),
    "ddp-buffers": ("the copy of the module's buffers", "buffers"),
    "ddp-gradients": ("gradient averaging", "gradients"),
    "fsdp-gradients": ("FSDP's gradient averaging", "FSDP, gradients"),
    "fsdp-parameters": ("FSDP's gathering of parameters", "FSDP, parameters"),
    "nn-gradient": ("the gradient of a collective", "gradient"),
    "parameter-check": ("the check of parameter shapes", "parameter shapes"),
    RANDOM_NUMBERS: ("nbddp's copy of the random numbers' states", "random numbers"),
    "parameter-copy": ("the copy of parameters and buffers", "parameters"),
    "torch.distributed.checkpoint": ("a call of torch.distributed.checkpoint", "checkpoint"),
    "torch.distributed.pipelining": ("a call of torch.distributed.pipelining", "pipeline"),
}
#: Public functions, which are their own phrase.
_FUNCTIONS: Final = frozenset(
    (
        "all_gather_object",
        "breakpoint",
        "broadcast_object_list",
        "gather_object",
        "scatter_object_list",
    )
)
_READS_RESULTS: Final = frozenset(
    ("ddp-buckets", "parameter-check", "Join", RANDOM_NUMBERS, "torch.distributed.checkpoint")
)
_MAX_CALL: Final = 48


def is_function(origin: str) -> bool:
    """Return whether an origin is a public function, which the user's code has called by name."""
    return origin in _FUNCTIONS


def needs_result(origin: str) -> bool:
    """Return whether a feature reads sizes or orders from what its operations bring."""
    return is_function(origin) or origin in _READS_RESULTS


def is_own(origin: str) -> bool:
    """Return whether nbddp has called the operation: no line of code is the user's."""
    return origin == RANDOM_NUMBERS


def phrase(origin: str) -> str:
    """Return an origin as a noun: ``gradient averaging``, ``a call of Join``."""
    known = _PHRASES.get(origin)
    if known is not None:
        return known[0]
    return origin if is_function(origin) else f"a call of {origin}"


def short_phrase(origin: str) -> str:
    """Return an origin for tables and brackets: ``gradients``, ``Join``."""
    known = _PHRASES.get(origin)
    return origin if known is None else known[1]


def in_call(origin: str, call: str) -> str:
    """Return an origin with the user's call: ``gradient averaging in loss.backward()``.

    Args:
        origin: the origin.
        call: text of the call in the user's code; empty: it is not known.
    """
    if is_function(origin) or not call:
        return phrase(origin)
    return f"{phrase(origin)} in {_short_call(call)}"


def _short_call(call: str) -> str:
    """Leave out the arguments of a long call, then the beginning: ``DDP(...)``."""
    if len(call) <= _MAX_CALL:
        return call
    depth = 0
    for at in range(len(call) - 1, -1, -1):
        depth += (call[at] == ")") - (call[at] == "(")
        if not depth:
            break
    name = call[:at] if call.endswith(")") else call
    arguments = "(...)" if call.endswith(")") else ""
    if len(name) > _MAX_CALL:
        name = f"...{name[-_MAX_CALL + 8 :]}"
    return f"{name}{arguments}"
