"""Ranks chosen by dimensions of a DeviceMesh: ``tp=0``, ``dp=0,tp=1:3``, ``grid[tp=0]``.

Runs in: every process. Pure. The ranks report the meshes that their variables hold, and every
``-r`` and every ``ranks=`` is read by `read_ranks`.

    rank --Mesh, in RunFinished--> RankInfo.meshes --> read_ranks --> RankSet
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import msgspec

from nbddp.errors import BadOptionError
from nbddp.wire.rank_set import Rank, RankSet

#: A choice of a named mesh: ``grid[tp=0]``; without a choice it is all ranks of the mesh.
_NAMED = re.compile(r"\s*(?P<mesh>\w+)\[(?P<choice>[^\[\]]*)\]\s*")
_INTEGER = re.compile(r"-?\d+", re.ASCII)
#: Completion offers the indices of a dimension up to this size.
_MAX_OFFERED = 16


class Mesh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A DeviceMesh that a variable of a rank holds, as this rank sees it."""

    name: str  #: of the variable
    dims: tuple[str, ...]  #: names of the dimensions; empty: they have none
    shape: tuple[int, ...]
    ranks: tuple[Rank, ...]  #: the last dimension varies first
    made_ns: int  #: CLOCK_REALTIME when it was created; later meshes have larger numbers


MeshesByRank: TypeAlias = Mapping[Rank, Sequence[Mesh]]


@dataclass(frozen=True)
class _NamedMesh:
    """The meshes of all ranks that have the same name and dimensions.

    The slice ``mesh["tp"]`` has other ranks on each rank: their coordinates are put together.
    """

    name: str
    size_by_dim: dict[str, int]
    coordinates: dict[Rank, tuple[int, ...]]

    def __str__(self) -> str:
        sizes = ", ".join(f"{dim}=0 to {dim}={size - 1}" for dim, size in self.size_by_dim.items())
        return f"{self.name} ({sizes or 'its dimensions have no names'})"


def read_ranks(text: str, world_size: int, meshes: MeshesByRank) -> RankSet:
    """Read a choice of ranks: a list as `RankSet.parse` reads it, or dimensions of a mesh.

    Args:
        text: the choice. ``grid[tp=0]`` names the mesh, ``grid[]`` is all of its ranks; without
            a name it is the latest mesh that has all of these dimensions.
        world_size: number of ranks of the pool.
        meshes: the meshes that each rank has reported.

    Returns:
        The set of these ranks.

    Raises:
        BadOptionError: the text has another form, there is no such mesh, dimension or index, or
            it chooses no rank; the message lists what is legal.

    >>> grid = Mesh(name="m", dims=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3), made_ns=1)
    >>> read_ranks("tp=0", 4, {0: [grid]}), read_ranks("dp=1,tp=0:2", 4, {0: [grid]})
    (RankSet(0,2), RankSet(2-3))
    """
    if "=" not in text and "[" not in text:
        return RankSet.parse(text, world_size)
    named = _NAMED.fullmatch(text)
    choice = _choice(text if named is None else named["choice"])
    name = "" if named is None else named["mesh"]
    chosen = _chosen_mesh(_named_meshes(meshes), name, choice, text)
    indices = [
        _indices(chosen, dim, choice.get(dim, ":"), size)
        for dim, size in chosen.size_by_dim.items()
    ]
    legal = set(product(*indices)) if indices else set(chosen.coordinates.values())
    ranks = RankSet.of(rank for rank, at in chosen.coordinates.items() if at in legal)
    if not ranks:
        raise BadOptionError(f"{text!r} chooses no rank of mesh {chosen}")
    return ranks


def offers(word: str, meshes: MeshesByRank, mesh: str = "") -> Iterator[str]:
    """Yield the words to which Tab may complete a choice by dimensions.

    >>> grid = Mesh(name="m", dims=("dp", "tp"), shape=(2, 2), ranks=(0, 1, 2, 3), made_ns=1)
    >>> list(offers("", {0: [grid]})), list(offers("dp=0,", {0: [grid]}))
    (['dp=', 'tp='], ['dp=0,tp='])
    >>> list(offers("tp=", {0: [grid]}))
    ['tp=0', 'tp=1']
    """
    before, comma, last = word.rpartition(",")
    used = {part.partition("=")[0].strip() for part in before.split(",") if part}
    size_by_dim: dict[str, int] = {}
    for named in reversed(_named_meshes(meshes)):
        if mesh in ("", named.name) and used <= named.size_by_dim.keys():
            size_by_dim = named.size_by_dim | {
                dim: size for dim, size in size_by_dim.items() if dim not in named.size_by_dim
            }
    for dim, size in size_by_dim.items():
        if dim not in used:
            indices = range(min(size, _MAX_OFFERED)) if last.startswith(f"{dim}=") else [""]
            yield from (f"{before}{comma}{dim}={index}" for index in indices)


def spans_all(dim: str, world_size: int, meshes: MeshesByRank) -> bool:
    """Return whether a dimension of a mesh has all ranks: torch makes no group for it.

    >>> grid = Mesh(name="m", dims=("dp", "tp"), shape=(4, 1), ranks=(0, 1, 2, 3), made_ns=1)
    >>> spans_all("dp", 4, {0: [grid]}), spans_all("tp", 4, {0: [grid]})
    (True, False)
    """
    return any(named.size_by_dim.get(dim) == world_size for named in _named_meshes(meshes))


def mesh_names(meshes: MeshesByRank) -> list[str]:
    """The names of the meshes, the latest first."""
    return [named.name for named in _named_meshes(meshes)]


def _choice(text: str) -> dict[str, str]:
    """The text of the index by dimension."""
    choice: dict[str, str] = {}
    for part in text.split(",") if text.strip() else []:
        dim, equals, index = (piece.strip() for piece in part.partition("="))
        if not (dim and equals and index):
            raise BadOptionError(
                f"{part.strip()!r} in {text!r} is no index of a dimension; legal: tp=0, or a slice "
                "tp=1:3, for one dimension or more: 'dp=0,tp=1:3'"
            )
        if dim in choice:
            raise BadOptionError(f"{text!r} has {dim} twice. Next: a slice such as {dim}=0:2")
        choice[dim] = index
    return choice


def _chosen_mesh(
    meshes: Sequence[_NamedMesh], mesh: str, choice: Mapping[str, str], text: str
) -> _NamedMesh:
    """The mesh of this name, or the latest one that has all of these dimensions."""
    if not meshes:
        raise BadOptionError(
            f"{text!r} is about a DeviceMesh, and no variable of the ranks holds one; "
            "those of a cell are known when it has ended. Next: mesh = init_device_mesh(...) in a "
            "%%ddp cell, or a list such as -r 0,2-3"
        )
    legal = f"legal: {'; '.join(map(str, meshes))}"
    candidates = [named for named in meshes if mesh in ("", named.name)]
    if not candidates:
        raise BadOptionError(f"no variable {mesh!r} of the ranks holds a DeviceMesh; {legal}")
    for named in candidates:
        if choice.keys() <= named.size_by_dim.keys():
            return named
    dims = f"dimension{'s' * (len(choice) > 1)} {' and '.join(choice)}"
    problem = f"mesh {mesh} has no {dims}" if mesh else f"no DeviceMesh has the {dims}"
    raise BadOptionError(f"{problem}; {legal}")


def _named_meshes(meshes: MeshesByRank) -> list[_NamedMesh]:
    """The meshes of all ranks by name, the latest first."""
    by_name: dict[str, _NamedMesh] = {}
    reported = [mesh for of_rank in meshes.values() for mesh in of_rank]
    for mesh in sorted(reported, key=lambda mesh: mesh.made_ns, reverse=True):
        size_by_dim = dict(zip(mesh.dims, mesh.shape, strict=False))
        named = by_name.setdefault(mesh.name, _NamedMesh(mesh.name, size_by_dim, {}))
        if named.size_by_dim == size_by_dim:  # else an older one, which few ranks still have
            for rank, at in zip(mesh.ranks, product(*map(range, mesh.shape)), strict=False):
                named.coordinates.setdefault(rank, at)
    return list(by_name.values())


def _indices(mesh: _NamedMesh, dim: str, index: str, size: int) -> range:
    """The indices of a dimension that ``2``, ``-1`` or a slice ``1:3`` chooses."""
    parts = [part.strip() for part in index.split(":")]
    numbers = [int(part) if part else None for part in parts if _INTEGER.fullmatch(part or "0")]
    if len(numbers) == len(parts) <= 3 and numbers[2:] != [0]:
        number = numbers[0]
        if len(parts) > 1:
            return range(size)[slice(*numbers)]
        if number is not None and -size <= number < size:
            return range(size)[number % size :][:1]
    raise BadOptionError(
        f"{dim}={index} is no index of mesh {mesh}; legal: {dim}=0 to {dim}={size - 1}, or a slice "
        f"such as {dim}=0:{size}"
    )
