"""In the notebook kernel: what the user sees."""
