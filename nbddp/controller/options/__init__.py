"""The options of a pool: one definition for Python, the magics, the command line and kernel specs.

Runs in: the notebook's process. It imports neither a pool nor torch, so that ``nbddp kernel
install`` starts fast.
"""

from nbddp.controller.options.checks import DEFAULT_KEEP_S, check_seconds, check_text, checked_keep
from nbddp.controller.options.clusters import (
    cluster_names,
    cluster_options,
    clusters_file,
    lines_outside,
)
from nbddp.controller.options.host_slots import HOSTFILE, without_slots
from nbddp.controller.options.launcher_checks import (
    ENTRY_POINTS,
    LOCAL,
    PSIJ_LAUNCHERS,
    check_hosts,
    launcher_names,
)
from nbddp.controller.options.line_option import duration, seconds, with_joined_values
from nbddp.controller.options.pool_options import LINE_OPTIONS, PoolOptions

__all__ = [
    "DEFAULT_KEEP_S",
    "ENTRY_POINTS",
    "HOSTFILE",
    "LINE_OPTIONS",
    "LOCAL",
    "PSIJ_LAUNCHERS",
    "PoolOptions",
    "check_hosts",
    "check_seconds",
    "check_text",
    "checked_keep",
    "cluster_names",
    "cluster_options",
    "clusters_file",
    "duration",
    "launcher_names",
    "lines_outside",
    "seconds",
    "with_joined_values",
    "without_slots",
]
