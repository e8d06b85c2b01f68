"""Recovery of a pool: aborts stuck operations, replaces ranks, and rebuilds process groups. Pure.

Runs in: the hub thread.
"""

from nbddp.controller.recovery.machine import RecoveryMachine

__all__ = [
    "RecoveryMachine",
]
