"""Values of a rank that the notebook asks for: push, pull, vars, diff, show."""
