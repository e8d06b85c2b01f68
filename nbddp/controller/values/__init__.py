"""Values of ranks: push, pull, vars and diff."""
