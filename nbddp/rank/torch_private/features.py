"""Functions inside torch that call collectives for the user: DDP, FSDP, SyncBatchNorm and others.

Runs in: the rank process. Checked with torch 2.13. A function that is not named here leaves an
operation without an origin, and it is shown by its own name.
"""

import types
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

_TORCH: Final = str(Path(torch.__file__).parent)
#: Any other function of a file or folder.
_ANY: Final = ""

#: Origins, as `nbddp.wire.flight_recorder.origins` describes them, by file and function. The
#: innermost function of an operation that is found here decides.
_BY_FILE: Final[Mapping[str, Mapping[str, str]]] = {
    "distributed/__init__.py": {"breakpoint": "breakpoint"},
    "distributed/algorithms/join.py": {_ANY: "Join"},
    "distributed/fsdp/_flat_param.py": {
        "_all_gather_flat_param": "fsdp-parameters",
        _ANY: "FSDP",
    },
    "distributed/fsdp/_fully_shard/_fsdp_collectives.py": {
        "foreach_all_gather": "fsdp-parameters",
        "foreach_reduce": "fsdp-gradients",
    },
    "distributed/fsdp/_runtime_utils.py": {
        "_reduce_grad": "fsdp-gradients",
        "_reduce_grad_no_shard": "fsdp-gradients",
        _ANY: "FSDP",
    },
    "distributed/nn/functional.py": {"backward": "nn-gradient"},
    "distributed/optim/zero_redundancy_optimizer.py": {_ANY: "ZeroRedundancyOptimizer"},
    "distributed/utils.py": {
        "_verify_param_shape_across_processes": "parameter-check",
        "_sync_params_and_buffers": "parameter-copy",
    },
    "nn/modules/_functions.py": {"forward": "batch-statistics", "backward": "batch-statistics"},
    "nn/parallel/distributed.py": {
        "_check_global_requires_backward_grad_sync": "Join",
        "_delayed_all_reduce_hook": "ddp-gradients",
        "_distributed_broadcast_coalesced": "ddp-buffers",
        "_find_common_rank": "Join",
        "_fire_reducer_autograd_hook": "ddp-gradients",
        "_match_all_reduce_for_bwd_pass": "Join",
        "_match_unused_params_allreduce": "Join",
        "_pre_forward": "ddp-buckets",
        _ANY: "DistributedDataParallel",
    },
}
_BY_FOLDER: Final[Mapping[str, Mapping[str, str]]] = {
    "distributed/_shard/": {_ANY: "ShardedTensor"},
    "distributed/algorithms/ddp_comm_hooks/": {_ANY: "ddp-gradients"},
    "distributed/algorithms/model_averaging/": {_ANY: "model averaging"},
    "distributed/checkpoint/": {_ANY: "torch.distributed.checkpoint"},
    "distributed/fsdp/": {_ANY: "FSDP"},
    "distributed/pipelining/": {_ANY: "torch.distributed.pipelining"},
    "distributed/tensor/": {_ANY: "DTensor"},
}
#: Public functions that call others: a user, or a feature above, calls them.
_PUBLIC: Final = {
    name: name
    for name in (
        "all_gather_object",
        "broadcast_object_list",
        "gather_object",
        "scatter_object_list",
    )
}
#: The function of autograd from which C++ calls the reducer of `DistributedDataParallel`.
_ENGINE: Final = "_engine_run_backward"
REDUCER: Final = "ddp-gradients"


def is_engine(code: types.CodeType) -> bool:
    """Return whether this is the function in which the main thread waits for a backward pass."""
    return code.co_name == _ENGINE and code.co_filename == f"{_TORCH}/autograd/graph.py"


def origins_in(file: str) -> Mapping[str, str] | None:
    """Return the origins of a file of torch by function; the one of the key ``""`` is for others.

    None: no function of the file calls collectives for the user.
    """
    if not file.startswith(f"{_TORCH}/"):
        return None
    name = file[len(_TORCH) + 1 :]
    if name == "distributed/distributed_c10d.py":
        return _PUBLIC
    known = _BY_FILE.get(name)
    if known is None:
        known = next((_BY_FOLDER[each] for each in _BY_FOLDER if name.startswith(each)), None)
    return known


def is_public(origin: str) -> bool:
    """Return whether an origin is a public function, which a feature may have called."""
    return origin in _PUBLIC
