"""One prompt for all ranks: for their debuggers, and where they stop before operations. Pure.

Runs in: the thread that waits for the cell.
"""

from nbddp.controller.prompts.break_points import BreakPoints, can_come, passed
from nbddp.controller.prompts.debugger_commands import HELP
from nbddp.controller.prompts.debugger_turns import Answer, DebuggerTurns, Turn
from nbddp.controller.prompts.operation_rows import OperationRow, Progress, progress_in
from nbddp.controller.prompts.step_commands import STEP_HELP, Free, Sight
from nbddp.controller.prompts.step_turns import StepTurns
from nbddp.controller.prompts.stuck_turns import StuckTurns
from nbddp.controller.prompts.typed_code import typed_at

__all__ = [
    "HELP",
    "STEP_HELP",
    "Answer",
    "BreakPoints",
    "DebuggerTurns",
    "Free",
    "OperationRow",
    "Progress",
    "Sight",
    "StepTurns",
    "StuckTurns",
    "Turn",
    "can_come",
    "passed",
    "progress_in",
    "typed_at",
]
