"""Values between processes: pickling, shared memory, previews."""
