"""Launchers of agents: on this machine now, by torchrun, Slurm, ssh or Kubernetes later."""
