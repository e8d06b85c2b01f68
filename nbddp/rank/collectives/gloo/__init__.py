"""Gloo's sockets, and waits and futures for threads that Gloo does not wake.

Runs in: the rank process.
"""
