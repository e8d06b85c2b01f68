"""In the notebook kernel: the pool, its life and its connection to the agents."""
