"""How agents are started: here, and later by torchrun, Slurm, ssh or Kubernetes."""
