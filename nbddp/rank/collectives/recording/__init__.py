"""What a rank writes of its operations: call sites, signatures, the board of a node."""
