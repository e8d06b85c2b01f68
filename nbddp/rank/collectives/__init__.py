"""Process groups that are traced, can be freed when they hang, and are made again in place."""
