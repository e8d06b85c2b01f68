"""One prompt for the debuggers of all ranks: which rank is asked, and what a line means. Pure.

Runs in: the thread that waits for the cell.
"""

from nbddp.controller.prompts.commands import HELP
from nbddp.controller.prompts.turns import Answer, PromptTurns, Turn

__all__ = ["HELP", "Answer", "PromptTurns", "Turn"]
