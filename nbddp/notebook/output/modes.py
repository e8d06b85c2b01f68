"""How the output of a cell is shown.

Runs in: the notebook's process. Pure.
"""

from typing import Literal, TypeAlias

#: How the output of a cell is shown.
Out: TypeAlias = Literal["merged", "ranks", "quiet"]
