"""One process per node: owns the ranks of the node, their pipes, signals and exit status."""
