"""Finds the line of the user's code that issued an operation, also through DDP, FSDP2 or autograd.

It also finds the feature of a library through which the line did so, the *origin* of the operation,
and the iteration of the loops around the line, see `counting_loops`.

Runs in: the rank process, any thread, once for each operation, within half a microsecond.
"""

import os
import sys
import sysconfig
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

import msgspec

import nbddp
from nbddp.rank.code_sites import call_text, site_at
from nbddp.rank.collectives.recording.counting_loops import CountingLoops, local_integer
from nbddp.rank.torch_private import features
from nbddp.wire.flight_recorder import (
    RANDOM_NUMBERS,
    Loops,
    LoopVariable,
    Site,
    Writer,
    is_own,
)

_CELL, _USER, _LIBRARY, _MACHINERY = 3, 2, 1, 0
_STDLIB = f"{sysconfig.get_path('stdlib')}{os.sep}"
_PACKAGES = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("purelib", "platlib"))
#: Code of nbddp is in this folder.
OWN_FOLDER: Final = f"{Path(nbddp.__file__).parent}{os.sep}"
#: Torch marks old functions with the decorator of this package, so its frames are between a line
#: and torch's function.
_DECORATORS = tuple(str(Path(folder, "typing_extensions.py")) for folder in _PACKAGES)
#: Frames outside this file are not the user's: nbddp's loop, and the fork server.
_BEGINNING = str(Path(OWN_FOLDER, "rank", "cells", "executor.py"))
#: The file of nbddp that calls collectives for itself, and its function.
_RANDOM_STATES = str(Path(OWN_FOLDER, "rank", "random_states.py"))
_OWN_ORIGINS: Final = {"share": RANDOM_NUMBERS}
_MAX_STACK = 16
#: Frames between an operation and a line that calls torch's functions directly.
_NEAR = 4
#: Loops of callers are looked for in this many frames.
_MAX_CALLERS = 32
#: Number of loops whose variables a record holds.
_MAX_LOOPS = 2

#: Offset of the names in shared memory, or 0; the value of the outer and of the inner variable.
Iteration: TypeAlias = tuple[int, int, int]
NO_ITERATION: Final[Iteration] = (0, 0, 0)


class KnownLine(NamedTuple):
    """A line that has issued operations before."""

    offset: int  #: of its site in shared memory
    between: int  #: number of torch frames in between for a line of a cell, else -1
    code: types.CodeType  #: kept, so that no other code gets its id
    has_loops: bool  #: a counting loop may be around it, or around the line that called it


class _Frame(NamedTuple):
    """The known facts about the frames of an instruction."""

    names: tuple[str, ...]  #: of counting loops, the innermost first
    is_outermost: bool  #: the user's code is not called by other code of the user
    code: types.CodeType  #: kept, so that no other code gets its id


class Sites:
    """Finds call sites, and caches them, since training loops repeat them.

    Args:
        cell_of: returns the execution count of the cell with a file name; 0: it is no cell.
        writer: writes sites into shared memory.
        machinery: folders of packages that are never the user's code.
    """

    def __init__(
        self,
        cell_of: Callable[[str], int],
        writer: Writer,
        machinery: tuple[str, ...],
    ) -> None:
        self._cell_of = cell_of
        self._writer = writer
        self._machinery = (OWN_FOLDER, *_DECORATORS, *machinery)
        self._kind_by_file: dict[str, int] = {}
        self._origins_by_file: dict[str, Mapping[str, str]] = {}  #: of files that have any
        self._loops = CountingLoops()
        #: By code and instruction.
        self.known: dict[tuple[int, int], KnownLine] = {}
        self._frames: dict[tuple[int, int], _Frame] = {}
        #: Offsets of sites by code, instruction and origin: `known` keeps the code.
        self._offsets: dict[tuple[int, int, str], int] = {}
        #: Number of torch frames in between at the last call: the next call mostly has as many.
        self.between = 0
        #: A call that the user has typed at a prompt in place of that of a line: the thread that
        #: makes it, and its text; empty: there is none.
        self.typed: tuple[int, str] = (0, "")

    def here(self, depth: int = 2) -> tuple[int, types.FrameType | None]:
        """Return the offset of the call site, searched from ``depth`` frames up.

        The second value is the frame of the site, if loops may count around it, see `iteration`.

        The site is the innermost line of a cell; else the innermost line of the user's files; else
        of a library that is not torch.
        """
        between = self.between
        try:
            likely = sys._getframe(depth + between)
            known = self.known[id(likely.f_code), likely.f_lasti]
        except (ValueError, KeyError):
            return self.search(sys._getframe(depth))
        if known.between == between and known.offset > self._writer.oldest_text:
            return known.offset, likely if known.has_loops else None
        return self.search(sys._getframe(depth))

    def search(self, frame: types.FrameType | None) -> tuple[int, types.FrameType | None]:
        """Return the offset of the call site from a frame outwards, as `here` does."""
        best, best_kind, between, origin = self._innermost(frame)
        if best is None:
            return 0, None
        code = best.f_code
        key = (id(code), best.f_lasti)
        # A line of few frames has one origin: the buckets of a backward.
        is_near = (
            best_kind == _CELL and between <= _NEAR and (not origin or origin == features.REDUCER)
        )
        if is_near:
            self.between = between
        offset = self._offsets.get((*key, origin), 0)
        if self._typed_here:
            site = self._site(best, origin)
            return self._writer.text(site, lambda: site), best
        if offset <= self._writer.oldest_text:
            site = self._site(best, origin)
            offset = self._offsets[*key, origin] = self._writer.text(site, lambda: site)
        about = self._frames.get(key) or self._frame(best)
        has_loops = bool(about.names) or not about.is_outermost
        self.known[key] = KnownLine(offset, between if is_near else -1, code, has_loops)
        return offset, best if has_loops else None

    def user_frame(self, frame: types.FrameType | None) -> types.FrameType | None:
        """Return the frame of the call site, from a frame outwards; None: it is not known."""
        return self._innermost(frame)[0]

    def call_site(self, frame: types.FrameType | None) -> tuple[types.FrameType | None, Site]:
        """Return the frame of the call site, from a frame outwards, and the site of the call."""
        best, _, _, origin = self._innermost(frame)
        return best, Site() if best is None else self._site(best, origin)

    def cell_of(self, frame: types.FrameType) -> int | None:
        """Return the number of a frame's cell; 0: a file of the user; None: other code."""
        file = frame.f_code.co_filename
        kind = self._kind_by_file.get(file)
        if kind is None:
            kind = self._classify(file)
        return None if kind < _USER else self._cell_of(file)

    def site_of(self, frame: types.FrameType | None) -> Site:
        """Return the line that a frame is at."""
        return Site() if frame is None else self._site(frame)

    def _innermost(
        self, frame: types.FrameType | None
    ) -> tuple[types.FrameType | None, int, int, str]:
        """Return the call site's frame, its kind, the number of frames before it, the origin."""
        kinds, origins = self._kind_by_file, self._origins_by_file
        outside = _outside(frame)
        between = -1
        best: types.FrameType | None = None
        best_kind = _MACHINERY
        origin = ""
        while frame is not None:
            between += 1
            code = frame.f_code
            file = code.co_filename
            kind = kinds.get(file)
            if kind is None:
                kind = self._classify(file)
            if kind > best_kind:
                best, best_kind = frame, kind
                if kind == _CELL:
                    break
                if kind == _LIBRARY and (not origin or features.is_public(origin)):
                    origin = _package_of(file)
            elif best_kind < _USER and file in origins:
                origin = _inner_origin(origin, origins[file], code.co_name)
            frame = frame.f_back
        if best is None:
            # A thread of autograd, or a thread of Gloo in a callback, works for the current line of
            # the main thread.
            best, line = self._line_of_main()
            outside = line if outside is None else outside
        if outside is not None and features.is_engine(outside.f_code):
            origin = features.REDUCER  # C++ has no frame of its own
        return best, best_kind, between, origin

    def iteration(self, frame: types.FrameType | None) -> Iteration:
        """Return the iteration of the loops around a line of the user's code, and its callers."""
        names, values = self._loops_around(frame)
        if not names:
            return NO_ITERATION
        offset = self._writer.text(("loops", names), lambda: Loops(names))
        return offset, values[0] if len(values) == _MAX_LOOPS else 0, values[-1]

    def loop_variables(self, frame: types.FrameType | None) -> tuple[LoopVariable, ...]:
        """Return the same as data: the outermost variable first."""
        return tuple(map(LoopVariable, *self._loops_around(frame)))

    def _loops_around(
        self, frame: types.FrameType | None
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        names: tuple[str, ...] = ()
        values: tuple[int, ...] = ()
        for _ in range(_MAX_CALLERS):
            if frame is None:
                break
            about = self._frames.get((id(frame.f_code), frame.f_lasti)) or self._frame(frame)
            for name in about.names:
                value = local_integer(frame, name)
                if value is not None:
                    names, values = (name, *names), (value, *values)
                    if len(names) == _MAX_LOOPS:
                        break
            if about.is_outermost or len(names) == _MAX_LOOPS:
                break
            frame = frame.f_back
        return names, values

    def _frame(self, frame: types.FrameType) -> _Frame:
        """Find the counting loops around the line of a frame."""
        code = frame.f_code
        file = code.co_filename
        kind = self._kind_by_file.get(file)
        if kind is None:
            kind = self._classify(file)
        is_outermost = file == _BEGINNING or (kind == _CELL and code.co_name == "<module>")
        names = self._loops.around(file, frame.f_lineno) if kind in (_CELL, _USER) else ()
        about = self._frames[id(code), frame.f_lasti] = _Frame(names, is_outermost, code)
        return about

    def _line_of_main(self) -> tuple[types.FrameType | None, types.FrameType | None]:
        """Return the line that the main thread works for, and its innermost frame."""
        main = threading.main_thread().ident or 0
        frame = sys._current_frames().get(main) if threading.get_ident() != main else None
        innermost = frame
        best: types.FrameType | None = None
        best_kind = _MACHINERY
        while frame is not None:
            kind = self._classify(frame.f_code.co_filename)
            if kind > best_kind:
                best, best_kind = frame, kind
            frame = frame.f_back
        return best, innermost

    def forget(self) -> None:
        """Drop the cache before a new cell: it must not keep code of earlier cells alive."""
        self.known.clear()
        self._frames.clear()
        self._offsets.clear()
        # The I/O thread adds files while it describes the rank: a copy does not change.
        kinds = self._kind_by_file.copy()
        self._kind_by_file = {file: kind for file, kind in kinds.items() if kind != _USER}

    def stack(self, frame: types.FrameType | None) -> tuple[Site, ...]:
        """Return the lines of cells, user files and libraries from ``frame`` outwards."""
        return tuple(map(self._site, self.frames(frame)))

    def frames(self, frame: types.FrameType | None) -> tuple[types.FrameType, ...]:
        """Return the frames of these lines; those far outside are left out."""
        return tuple(islice(self._frames_outwards(frame), _MAX_STACK))

    def _frames_outwards(self, frame: types.FrameType | None) -> Iterator[types.FrameType]:
        while frame is not None:
            file = frame.f_code.co_filename
            if file == _BEGINNING:
                break
            kind = self._kind_by_file.get(file)
            if (self._classify(file) if kind is None else kind) != _MACHINERY:
                yield frame
            frame = frame.f_back

    def _classify(self, file: str) -> int:
        if self._cell_of(file):
            kind = _CELL
        elif file.startswith((*self._machinery, "<frozen", "<string>")):
            kind = _MACHINERY
            origins = _OWN_ORIGINS if file == _RANDOM_STATES else features.origins_in(file)
            if origins is not None:
                self._origins_by_file[file] = origins
        elif file.startswith(_PACKAGES):
            kind = _LIBRARY
        elif file.startswith(_STDLIB):
            kind = _MACHINERY
        else:
            kind = _USER
        self._kind_by_file[file] = kind
        return kind

    @property
    def _typed_here(self) -> str:
        thread, text = self.typed
        return text if text and thread == threading.get_ident() else ""

    def _site(self, frame: types.FrameType, origin: str = "") -> Site:
        code = frame.f_code
        site = site_at(code, frame.f_lineno, self._cell_of(code.co_filename))
        if typed := self._typed_here:
            return msgspec.structs.replace(site, source=typed)
        if not origin:
            return site
        if is_own(origin):
            return msgspec.structs.replace(site, origin=origin, source="")
        call = call_text(code, frame.f_lasti, site.source)
        return msgspec.structs.replace(site, origin=origin, call=call)


def _inner_origin(inner: str, origins: Mapping[str, str], function: str) -> str:
    """Return the origin of an operation from a frame outwards.

    Args:
        inner: that of the frames inside; empty: none.
        origins: those in the frame's file, by function.
        function: that of the frame.
    """
    if inner and not features.is_public(inner):
        return inner
    return origins.get(function) or origins.get("") or inner


def _package_of(file: str) -> str:
    """Return the name of the package that a file of a library belongs to."""
    folder = next(each for each in _PACKAGES if file.startswith(each))
    return file[len(folder) :].partition(os.sep)[0].removesuffix(".py")


def _outside(frame: types.FrameType | None) -> types.FrameType | None:
    """Return the innermost frame that is not of nbddp; None: C++ has called nbddp in its thread."""
    while frame is not None and frame.f_code.co_filename.startswith(OWN_FOLDER):
        frame = frame.f_back
    return frame
