"""Runs the cells of a rank: IPython's shell, interrupts, input, output, debugger.

Runs in: the rank process.
"""
