"""The error of a cell: the first failure, its consequences, the next step. Pure."""
