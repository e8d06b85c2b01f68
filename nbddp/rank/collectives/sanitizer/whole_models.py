"""Hashes of whole models: before their gradients are first sent, and at the end of the cell.

Runs in: the rank process, main thread. `Replicas` hashes what an optimizer steps, with each step;
these hashes show what one rank steps and another does not.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from nbddp.rank import torch_private
from nbddp.rank.collectives.recording.group_counters import GroupCounters
from nbddp.rank.collectives.sanitizer.reduced_gradients import Reduction
from nbddp.wire.flight_recorder import HASH_BYTES, Operation, ReplicaSteps, Site, shortened

HashOf: TypeAlias = Callable[[torch.Tensor], bytes]


@dataclass(frozen=True)
class Model:
    """Tensors that are equal on all ranks of a group, or are to be."""

    module: torch.nn.Module | None  #: None: the parameters of an optimizer are those of no module
    pg_id: str
    number: int  #: the same on all ranks
    ignored: Container[str] = ()  #: names of parameters and buffers that each rank has for itself
    is_ddp: bool = False
    #: DDP sends the buffers of rank 0 before each forward: between two, they may differ.
    sends_buffers: bool = False

    @classmethod
    def of_ddp(cls, model: Any, pg_id: str) -> "Model":
        """Return the replica of a DDP model.

        Args:
            model: the DDP model.
            pg_id: of its group.
        """
        number = torch_private.numbers_of(model).number
        ignored = model.parameters_to_ignore
        return cls(model.module, pg_id, number, ignored, True, bool(model.broadcast_buffers))

    @property
    def key(self) -> tuple[str, int]:
        """The same on all ranks."""
        return self.pg_id, self.number

    @property
    def name(self) -> str:
        """The class of the module."""
        return "a model" if self.module is None else type(self.module).__name__


@dataclass(frozen=True)
class _Whole:
    """A DDP model of the cell."""

    model: Model
    reduction: Reduction | None  #: the first of its gradients; None: it stepped before one
    tensors: Mapping[str, torch.Tensor]
    before: Mapping[str, bytes]


class WholeModels:
    """The DDP models that have sent gradients in a cell, or that an optimizer has stepped.

    Args:
        hash_of: returns the hash of a tensor.
    """

    def __init__(self, hash_of: HashOf) -> None:
        self._hash_of = hash_of
        #: By group and number. The model may be gone at the end of the cell, and its weights not.
        self._known: dict[tuple[str, int], _Whole] = {}

    def clear(self) -> None:
        """Forget all: the cell has ended."""
        self._known.clear()

    def note_sender(self, counters: GroupCounters, reduction: Reduction) -> None:
        """Take the hashes of the DDP model that sends gradients, if it is known for sure.

        Other models may be alive, with equal shapes and with weights of each rank's own.

        Args:
            counters: of the group.
            reduction: of gradients.
        """
        if not any(
            getattr(each.process_group, "counters", None) is counters
            and Model.of_ddp(each, reduction.pg_id).key not in self._known
            for each in torch_private.ddp_models()
        ):
            return  # the search for the model goes through all parameters, for each bucket
        models = torch_private.models_that_send()
        # Several wrap one module where the code has made the model again, and share its weights.
        if not models or len({id(each.module) for each in models}) > 1:
            return
        model = models[-1]
        is_of_group = getattr(model.process_group, "counters", None) is counters
        # With a static graph, no parameter is known in the first pass: this is a later one.
        is_first = not getattr(model, "static_graph", False)
        if is_of_group and is_first and not torch_private.parts_on_purpose(model):
            self.note(Model.of_ddp(model, reduction.pg_id), reduction)

    def note(self, model: Model, reduction: Reduction | None = None) -> Mapping[str, bytes]:
        """Take the hashes of a DDP model, unless that was done in this cell.

        Args:
            model: the model.
            reduction: of its gradients; None: an optimizer is about to step it.

        Returns:
            The hashes of its parameters that were taken.
        """
        if model.key in self._known or model.module is None:
            return {}
        named = model.module.named_parameters()
        tensors = {name: one for name, one in named if name not in model.ignored}
        return self.note_tensors(model, tensors, reduction)

    def note_tensors(
        self, model: Model, tensors: Mapping[str, torch.Tensor], reduction: Reduction | None
    ) -> Mapping[str, bytes]:
        """Take the hashes of parameters, and return them.

        Args:
            model: of which they are.
            tensors: the parameters.
            reduction: of their gradients; None: an optimizer is about to step them.
        """
        before = {name: self._hash_of(one) for name, one in tensors.items()}
        self._known[model.key] = _Whole(model, reduction, tensors, before)
        return before

    def reports(
        self, operations: Callable[[], Iterable[Operation]], stepped: Container[tuple[str, int]],
        *, others_step: bool,
    ) -> Iterator[ReplicaSteps]:  # fmt: skip
        """Yield the hashes from before and from now.

        Args:
            operations: returns the last operations of this rank.
            stepped: the groups and numbers of models that optimizers have stepped.
            others_step: an optimizer has stepped something in this cell.
        """
        for whole in self._known.values():
            site = Site() if whole.reduction is None else site_of(whole.reduction, operations())
            yield whole_report(
                whole.model,
                site,
                whole.before,
                whole.tensors,
                self._hash_of,
                others_step=others_step and whole.model.key not in stepped,
            )


def whole_report(
    model: Model, site: Site, before: Mapping[str, bytes], tensors: Mapping[str, torch.Tensor],
    hash_of: HashOf, *, early_site: Site | None = None, others_step: bool = False,
) -> ReplicaSteps:  # fmt: skip
    """Report a replica as it was, and as it is at the end of the cell.

    Args:
        model: the replica.
        site: the line that reduces its gradients.
        before: the hashes of its parameters before.
        tensors: its parameters.
        hash_of: returns the hash of a tensor.
        early_site: a line that has stepped it before that.
        others_step: optimizers step other weights only: each rank may compute these from them.
    """
    first = [before[name] for name in tensors]
    last = [hash_of(tensor) for tensor in tensors.values()]
    return ReplicaSteps(
        pg_id=model.pg_id,
        number=model.number,
        optimizer_number=0,
        model=shortened(model.name),
        optimizers=(),
        tensors=tuple(map(shortened, tensors)),
        digests=joined(first) + joined(last),
        details=b"".join([*first, *last]),
        newest=b"".join(last),
        buffers=(),
        buffer_hashes=b"",
        states=(),
        state_hashes=b"",
        settings=(),
        setting_steps=(),
        sites=(site,),
        site_of_step=bytes(2),
        is_ddp=model.is_ddp,
        may_be_own=others_step and early_site is None,
        early_site=early_site or Site(),
    )


def site_of(reduction: Reduction, operations: Iterable[Operation]) -> Site:
    """Return the line of a reduction, if its record is still there.

    Args:
        reduction: the reduction.
        operations: the last ones of this rank.
    """
    place = reduction.pg_id, reduction.number
    sites = (each.site for each in operations if (each.pg_id, each.collective_seq_id) == place)
    return next(sites, Site())


def joined(parts: Iterable[bytes]) -> bytes:
    """Return the digest of several hashes."""
    value = 0
    for part in parts:
        value = (value * 0x100000001B3 + int.from_bytes(part)) & (1 << 8 * HASH_BYTES) - 1
    return value.to_bytes(HASH_BYTES)
