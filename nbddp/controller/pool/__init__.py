"""The pool as Python code calls it: start, run, restart, stop."""
