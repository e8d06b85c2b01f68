"""Expressions about the values that a rank holds."""

#: Tensors that a rank keeps between two questions about them.
FINGERPRINTS_KEPT = (
    "sum(len(each._tensors) for each in __import__('gc').get_objects()"
    " if type(each).__name__ == 'Fingerprints')"
)
