"""The error of a cell: the first failure, its consequences, the next step. Pure."""

from nbddp.controller.cell_errors.build import (
    cell_error,
    ranks_to_debug,
    whole_tracebacks,
)
from nbddp.controller.cell_errors.evidence import (
    at_end,
    freed_ranks,
    is_consequence,
    is_end_of_wait,
    not_kept,
    with_all_raised,
)
from nbddp.controller.cell_errors.exited_ranks import exit_report, without_shown
from nbddp.controller.cell_errors.next_steps import (
    interrupted_catch_up,
    restart_continues_text,
    restarted_text,
)
from nbddp.controller.cell_errors.own_exits import exit_calls

__all__ = [
    "at_end",
    "cell_error",
    "exit_calls",
    "exit_report",
    "freed_ranks",
    "interrupted_catch_up",
    "is_consequence",
    "is_end_of_wait",
    "not_kept",
    "ranks_to_debug",
    "restart_continues_text",
    "restarted_text",
    "whole_tracebacks",
    "with_all_raised",
    "without_shown",
]
