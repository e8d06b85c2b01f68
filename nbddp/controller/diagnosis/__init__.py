"""Finds which ranks are stuck and why: the wait-for graph, its causes, their words. Pure."""
