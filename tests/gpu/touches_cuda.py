"""Touches CUDA where no module of ``NBDDP_PRELOAD`` may: ranks forked from there cannot use it."""

import torch

torch.zeros(1, device="cuda")
