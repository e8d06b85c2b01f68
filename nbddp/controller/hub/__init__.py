"""The one thread with the one socket to all agents, and the runs it serves."""
