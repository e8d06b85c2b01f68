"""Facts and limits of the operating system: processes, folders, memory.

Runs in: all processes.
"""
