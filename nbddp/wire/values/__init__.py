"""Values between processes: pickling, shared memory, fingerprints, previews."""
