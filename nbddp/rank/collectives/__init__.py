"""Traced process groups, whose operations can be aborted, and which are rebuilt in place.

Runs in: the rank process.
"""
