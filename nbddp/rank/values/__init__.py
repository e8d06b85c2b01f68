"""Values of a rank that the notebook asks for: push, pull, vars, diff, show."""

from nbddp.rank.values.tensor_hash import of_tensor as hash_of_tensor
from nbddp.rank.values.transfers import Variables

__all__ = [
    "Variables",
    "hash_of_tensor",
]
