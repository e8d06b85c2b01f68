"""Launchers of agents: on this machine now, by torchrun, Slurm, ssh or Kubernetes later."""

from nbddp.controller.launch.local import LocalAgent

__all__ = [
    "LocalAgent",
]
