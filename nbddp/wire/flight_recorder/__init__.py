"""Records of operations in shared memory: their layout, writer, reader and schema."""
