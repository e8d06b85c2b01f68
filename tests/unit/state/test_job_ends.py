"""The warnings before the end of a job."""

import pytest
from msgspec.structs import replace

from nbddp.controller.state import JobEnd, JobEnds
from nbddp.wire.message_types import NodeFacts

FACTS = NodeFacts(
    host="n1", address="10.0.0.2", python="3", torch="2", nbddp="1", cpus=1, machine_cpus=1, gpus=0
)


def said(ends: JobEnds, *nodes: NodeFacts, now: float) -> list[str]:
    """The first words of each warning."""
    return [text.partition(",")[0] for text in ends.warnings(ends.of(nodes), now)]


def job(name: str, left_s: float) -> NodeFacts:
    return replace(FACTS, scheduler="slurm", job=name, job_left_s=left_s)


def test_a_job_is_told_ten_minutes_five_minutes_and_one_minute_before_its_end():
    ends, node = JobEnds(), job("7", 3600.0)
    ends.note(node, 1000.0)
    times = [1000.0, 3999.0, 4000.0, 4001.0, 4300.0, 4539.0, 4540.5, 4541.0, 4700.0]
    assert [said(ends, node, now=now) for now in times] == [
        *([], [], ["Slurm job 7 ends in 10 min"], [], ["Slurm job 7 ends in 5 min"], []),
        *(["Slurm job 7 ends in 1 min"], [], []),
    ]


def test_what_the_start_has_said_is_not_said_again():
    ends, node = JobEnds(), job("7", 200.0)
    ends.note(node, 0.0)
    assert [said(ends, node, now=now) for now in (0.0, 1.0, 139.0)] == [[], [], []]
    assert said(ends, node, now=140.0) == ["Slurm job 7 ends in 1 min"]


def test_jobs_without_a_known_end_and_those_of_other_nodes_are_not_told():
    ends = JobEnds()
    for node in (FACTS, job("7", 90.0), job("8", 80.0)):
        ends.note(node, 0.0)
    assert [said(ends, FACTS, job("8", -1.0), now=now) for now in (0.0, 60.0)] == [
        *([], ["Slurm job 8 ends in 20 s"])
    ]
    assert [end.job for end in ends.of([job("7", -1.0), job("8", -1.0)])] == ["8", "7"]


@pytest.mark.parametrize(
    ("left_s", "text"),
    [
        (-3.0, "has reached its end"),
        (54.0, "ends in 54 s"),
        (59.6, "ends in 1 min"),
        (599.7, "ends in 10 min"),
        (3599.0, "ends in 1 h 0 min"),
        (90000.0, "ends in 25 h 0 min"),
    ],
)
def test_the_time_that_is_left(left_s: float, text: str):
    assert JobEnd("slurm", "7", left_s).text(0.0) == f"Slurm job 7 {text}"


def test_a_changed_time_limit_is_told_and_warned_of_again():
    ends, node = JobEnds(), job("7", 200.0)
    ends.note(node, 0.0)
    assert said(ends, node, now=0.0) == []
    assert ends.change(node, 100.0, now=101.0) == ""  # the same end
    longer = ends.change(node, 7200.0, now=110.0)
    assert longer == "Slurm job 7 ends in 2 h 0 min: its time limit was changed"
    assert [end.ends_at for end in ends.of([node])] == [7310.0]
    assert said(ends, node, now=6711.0) == ["Slurm job 7 ends in 10 min"]
    assert ends.change(node, 200.0, now=6720.0).startswith("Slurm job 7 ends in 3 min")
    assert said(ends, node, now=6721.0) == []
    assert said(ends, node, now=6861.0) == ["Slurm job 7 ends in 1 min"]
    (end,) = ends.of([node])
    assert not end.is_over(6850.0)
    assert end.is_over(6870.0)
    assert ends.change(job("8", -1.0), 60.0, now=0.0) == "Slurm job 8 ends in 1 min"
