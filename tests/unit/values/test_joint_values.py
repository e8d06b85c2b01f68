"""Values that only all ranks together can make, and what holds their parameters."""

import pytest
import torch
from torch import nn

from nbddp.rank.values import joint_values


class Wrapper(nn.Module):
    """Stands for DistributedDataParallel, which needs a process group."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_a_ddp_model_and_what_has_its_parameters(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(joint_values, "DistributedDataParallel", Wrapper)
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = torch.optim.SGD(net.parameters(), 0.1)
    values = {
        "net": net,
        "model": Wrapper(net),
        "opt": opt,
        "schedule": torch.optim.lr_scheduler.StepLR(opt, 1),
        "other": other,
        "other_opt": torch.optim.SGD(other.parameters(), 0.1),
        "DDP": Wrapper,
        "x": torch.ones(2),
    }
    found = joint_values.joint_names(values)
    assert found == dict.fromkeys(("net", "model", "opt", "schedule"), ("model",))


def test_sharded_modules_and_meshes():
    sharded = type("FullyShardedDataParallel", (nn.Module,), {})()
    mesh = type("DeviceMesh", (), {})()
    found = joint_values.joint_names({"net": nn.Linear(2, 2), "sharded": sharded, "mesh": mesh})
    assert found == {"sharded": ("sharded",), "mesh": ("mesh",)}
