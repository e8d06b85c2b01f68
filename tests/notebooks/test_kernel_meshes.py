"""Ranks chosen by dimensions of a DeviceMesh, in the lines of the magics."""

import re
from collections.abc import Iterator

import pytest

from tests.support.kernel import LIMIT_S, Kernel


@pytest.fixture
def meshed(kernel: Kernel) -> Iterator[Kernel]:
    """Two ranks in a mesh ``grid`` of two rows, and a later one ``other``."""
    kernel.ok(
        "%%ddp\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "grid = init_device_mesh('cpu', (2, 1), mesh_dim_names=('dp', 'tp'))\n"
        "other = init_device_mesh('cpu', (1, 2), mesh_dim_names=('ep', 'tp'))"
    )
    yield kernel
    kernel.ok("%%ddp\ndel grid, other")


def test_verbs_take_dimensions(meshed: Kernel):
    assert meshed.ok("%%ddp -r dp=1\nprint('here')").lines == ["[1]   here"]
    assert meshed.ok("%%ddp -r ep=0,tp=0:1\nprint('here')").lines == ["[0]   here"]
    assert meshed.ok("%%ddp --mesh grid -r tp=0\nprint('here')").lines == ["[0-1] here"]
    assert meshed.value("%ddp pull rank -r tp=-1") == "1"
    assert meshed.value("%ddp pull [rank, 5][0] --mesh grid -r tp=0") == "[0, 1]"
    meshed.ok("pushed = 3")
    meshed.ok("%ddp push pushed -r tp=1")
    assert meshed.value("%ddp pull 'pushed' in globals()") == "[False, True]"
    assert "rank 0: " in meshed.ok("%ddp stacks -r dp=0").of("display_data")[0].text
    meshed.ok("%%ddp\nprint('rank', rank)")
    assert meshed.ok("%ddp output -r tp=1").lines[0] == "[1]   rank 1"
    assert "before all_reduce on rank 1" in meshed.ok("%ddp break all_reduce -r tp=1").text
    meshed.ok("%ddp clear")
    meshed.ok("%ddp vars pushed -r tp=1")
    meshed.run("%%ddp\n1 / 0")
    assert meshed.run("%ddp debug -r tp=1", "q").questions == ["[1]   ipdb> "]


def test_the_prompt_of_a_step_takes_dimensions(meshed: Kernel):
    code = "%%ddp --step\ndist.all_reduce(torch.ones(1))"
    cell = meshed.run(code, "p rank + 10 -r dp=1", "p rank + 20 -r grid[dp=0]", "c -r pp=0", "c")
    values = [line for line in cell.lines if re.match(r"\[\d\]   \d", line)]
    assert values == ["[1]   11", "[0]   20"]
    assert "no DeviceMesh has the dimension pp; legal: other (" in cell.text


def test_a_wrong_choice_lists_what_is_legal(meshed: Kernel):
    legal = "legal: other (ep=0 to ep=0, tp=0 to tp=1); grid (dp=0 to dp=1, tp=0 to tp=0)"
    for line in ("%%ddp -r pp=0\nrank", "%ddp pull rank -r pp=0", "%ddp restart -r pp=0"):
        assert (
            f"BadOptionError: no DeviceMesh has the dimension pp; {legal}" in meshed.run(line).error
        )
    error = meshed.run("%%ddp -r tp=2\nrank").error
    assert "tp=2 is no index of mesh other (ep=0 to ep=0, tp=0 to tp=1); legal: tp=0 to" in error


def test_tab_offers_dimensions_and_names_of_meshes(meshed: Kernel):
    def offered(line: str) -> list[str]:
        sent = meshed.client.complete(line, len(line))
        reply = meshed.client.get_shell_msg(timeout=LIMIT_S)
        while reply["parent_header"]["msg_id"] != sent:
            reply = meshed.client.get_shell_msg(timeout=LIMIT_S)
        return list(reply["content"]["matches"])

    assert offered("%%ddp -r ") == ["ep=", "tp=", "dp="]
    assert offered("%ddp pull rank -r dp=0,") == ["dp=0,tp="]
    assert offered("%ddp vars -r tp=") == ["tp=0", "tp=1"]
    assert offered("%ddp stacks --mesh ") == ["other", "grid"]
    assert offered("%%ddp --mesh grid -r ") == ["dp=", "tp="]


def test_the_group_of_a_dimension_with_all_ranks_is_the_default_one(meshed: Kernel):
    text = meshed.ok("%ddp break all_reduce --group ep").text
    assert "default" not in text  # it has one rank in each group
    meshed.ok("%ddp clear")
    meshed.ok("%%ddp\nwhole = init_device_mesh('cpu', (2,), mesh_dim_names=('all_of_us',))")
    text = meshed.ok("%ddp break all_reduce --group all_of_us").text
    assert "dimension 'all_of_us' has all ranks: its group is the default group" in text
    code = "%%ddp\ndist.all_reduce(torch.ones(1), group=whole.get_group())\ndel whole"
    assert meshed.run(code, "continue").questions == ["(step) "]
    meshed.ok("%ddp clear")
