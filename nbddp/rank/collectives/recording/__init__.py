"""The records of a rank's operations: call sites, signatures, the board of a node."""
