"""The next step where torch cannot be imported on a machine."""

import shlex
import sys
from typing import Any

import pytest

from nbddp.controller.options import PoolOptions
from nbddp.controller.pool.start_errors import torch_step

_NO_LIBRARY = (
    "Traceback (most recent call last):\n"
    '  File "/venv/nbddp/rank/main.py", line 9, in <module>\n'
    "    import torch.distributed as dist\n"
    '  File "/venv/site-packages/torch/__init__.py", line 1, in <module>\n'
    "    from torch._C import *\n"
    "ImportError: libcudart.so.13: cannot open shared object file\n"
)
_NO_MODULE = (
    '  File "/venv/nbddp/rank/main.py", line 9, in <module>\n'
    "    import torch.distributed as dist\n"
    "ModuleNotFoundError: No module named 'torch.distributed'\n"
)
_END = "which should show the same error; then install torch there again"


def options(**given: Any) -> PoolOptions:
    return PoolOptions.checked(1, **given)


@pytest.mark.parametrize("output", [_NO_LIBRARY, _NO_MODULE])
def test_a_host_of_ssh_is_named_as_ssh_knows_it_and_the_shell_there_reads_a_quoted_word(
    output: str,
):
    made = options(launcher="ssh", hosts=["a", "b"], python="/venv/bin/python")
    step = torch_step(output, 1, "b.cluster", made)
    command = "ssh b \"/venv/bin/python -c 'import torch.distributed'\""
    assert step == f"`{command}` in a terminal, {_END}"
    there = shlex.split(shlex.split(command)[2])
    assert there == ["/venv/bin/python", "-c", "import torch.distributed"]


def test_other_engines_name_the_machine_and_one_machine_has_no_name():
    slurm = options(nnodes=2, launcher="slurm", python="/venv/bin/python")
    command = "/venv/bin/python -c 'import torch.distributed'"
    assert torch_step(_NO_LIBRARY, 1, "n2", slurm) == f"`{command}` on n2, {_END}"
    own = f"{shlex.quote(sys.executable)} -c 'import torch.distributed'"
    assert torch_step(_NO_LIBRARY, 0, "", options()) == f"`{own}` in a terminal, {_END}"
    via = options(launcher="ssh", hosts=["a"], via="login", python="/venv/bin/python")
    assert f'`ssh a "{command}"` on login, ' in torch_step(_NO_LIBRARY, 0, "a", via)


def test_a_python_with_a_blank_in_its_path_reaches_the_shell_there_whole():
    made = options(launcher="ssh", hosts=["a"], python="/my $env/python")
    words = shlex.split(torch_step(_NO_LIBRARY, 0, "a", made).split("`")[1])
    assert shlex.split(words[2]) == ["/my $env/python", "-c", "import torch.distributed"]


@pytest.mark.parametrize(
    "output",
    ["", "Killed", "    import torch\nRuntimeError: no", "    import numpy\nImportError: no"],
)
def test_another_end_has_no_such_step(output: str):
    assert torch_step(output, 0, "a", options()) == ""
