"""The agent: one process per node, which owns the ranks, their pipes, signals and exit status.

Runs in: the agent process.
"""
