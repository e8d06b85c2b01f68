"""Code and expressions for tests of the values that ranks hold."""

#: Tensors that a rank keeps between two questions about them.
FINGERPRINTS_KEPT = (
    "sum(len(each._tensors) for each in __import__('gc').get_objects()"
    " if type(each).__name__ == 'Fingerprints')"
)

#: A cell that makes an equal model on every rank.
MODEL = """
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(40, 30), nn.BatchNorm1d(30), nn.Linear(30, 10))
"""
