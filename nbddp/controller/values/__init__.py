"""Values of ranks: push, pull, vars and diff."""

from nbddp.controller.values.at_prompt import PromptExchange
from nbddp.controller.values.compare import diff_values
from nbddp.controller.values.descriptions import Described, Descriptions
from nbddp.controller.values.push_pull import Exchange
from nbddp.controller.values.result import Detail, Difference, LeafDifference
from nbddp.controller.values.variables import ask_variables, by_name_and_rank, variables_to_dict

__all__ = [
    "Described",
    "Descriptions",
    "Detail",
    "Difference",
    "Exchange",
    "LeafDifference",
    "PromptExchange",
    "ask_variables",
    "by_name_and_rank",
    "diff_values",
    "variables_to_dict",
]
