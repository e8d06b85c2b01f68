"""Reports the device meshes that the user's variables hold, so that the notebook can choose ranks.

Runs in: the rank process, main thread, at the end of a cell. A rank without a mesh does nothing.
"""

import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from nbddp.rank import torch_private
from nbddp.wire.mesh_ranks import Mesh


class MeshReports:
    """The meshes that were created in this rank and are still there.

    Args:
        pool_ranks: converts ranks of the default group to those of the pool; empty: not known.
    """

    def __init__(self, pool_ranks: Callable[[list[int]], tuple[int, ...]]) -> None:
        self._pool_ranks = pool_ranks
        #: By the time at which it was created.
        self._created: weakref.WeakValueDictionary[int, DeviceMesh] = weakref.WeakValueDictionary()
        self._last_ns = 0
        self._reported: dict[str, int] = {}  #: when the mesh of each name was created
        torch_private.hook_meshes(self._note)

    def _note(self, mesh: DeviceMesh) -> None:
        self._last_ns = max(self._last_ns + 1, time.time_ns())
        self._created[self._last_ns] = mesh

    def changed(self, variables: Mapping[str, Any]) -> tuple[Mesh, ...] | None:
        """Return the meshes that variables hold; None: they are those of the last report."""
        made_by_id = {id(mesh): made_ns for made_ns, mesh in self._created.items()}
        made_by_name = {
            name: made_by_id[id(value)]
            for name, value in (variables.items() if made_by_id else ())
            if id(value) in made_by_id and not name.startswith("_")
        }
        if made_by_name == self._reported:
            return None
        self._reported = made_by_name
        return tuple(
            self._mesh(name, variables[name], made_ns) for name, made_ns in made_by_name.items()
        )

    def _mesh(self, name: str, mesh: DeviceMesh, made_ns: int) -> Mesh:
        ranks = mesh.mesh.flatten().tolist()
        return Mesh(
            name=name,
            dims=tuple(mesh.mesh_dim_names or ()),
            shape=tuple(mesh.mesh.shape),
            ranks=self._pool_ranks(ranks) or tuple(ranks),
            made_ns=made_ns,
        )
