"""The rank process, which runs cells. Besides `nbddp.wire.values`, only this folder imports torch.

Runs in: the rank, store and fork-server processes.
"""
