"""The error of a cell: what came first, what follows from it, what to do. Pure."""
