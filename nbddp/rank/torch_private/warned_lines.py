"""Warnings of torch that name the caller's line, where a function of ours stands between.

Runs in: the rank process.
"""

import sys
import types
import warnings
from pathlib import Path
from typing import Any

import nbddp

_OWN_FOLDER = f"{Path(nbddp.__file__).parent}/"


class _Warnings(types.ModuleType):
    """The module `warnings` for one module of torch: its ``stacklevel`` counts no frame of ours."""

    def __getattr__(self, name: str) -> Any:
        return getattr(warnings, name)

    def warn(self, message: Any, category: Any = None, stacklevel: int = 1, **more: Any) -> None:
        """Warn as `warnings.warn`."""
        level = stacklevel + 1  # this function
        frame: types.FrameType | None = sys._getframe(1)
        for _ in range(stacklevel - 1):
            frame = None if frame is None else frame.f_back
            while frame is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
                frame = frame.f_back
                level += 1
        warnings.warn(message, category, stacklevel=level, **more)


def pass_by_own_frames(module: types.ModuleType) -> None:
    """Let the warnings of a module of torch name the user's line, not one of ours.

    Args:
        module: has the name `warnings`; otherwise nothing is changed.
    """
    if getattr(module, "warnings", None) is warnings:
        module.warnings = _Warnings("warnings")  # type: ignore[attr-defined]
